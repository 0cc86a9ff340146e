"""Django's own tests of task backends, read from its source, run with the backend of onceward."""
