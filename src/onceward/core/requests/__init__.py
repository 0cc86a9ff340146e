"""Wait for replies: in a caller, and in a handler that is called again."""
