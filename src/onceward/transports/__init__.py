"""Define the transport contract and implement it."""
