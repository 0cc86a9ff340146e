"""The pages: one module for each, a function from a request to an answer."""
