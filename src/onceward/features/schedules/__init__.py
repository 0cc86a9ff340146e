"""Messages that are sent again and again, at dates."""
