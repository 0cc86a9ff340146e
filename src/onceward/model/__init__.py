"""Values: what a message, a parcel, a state and a setting are. No I/O."""
