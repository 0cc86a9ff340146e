"""The door: the names that users open, and the one place that knows everybody."""
