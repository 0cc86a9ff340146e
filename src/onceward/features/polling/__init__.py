"""One cursor for each session."""
