"""Store a parcel once, and tell its sender what became of it."""
