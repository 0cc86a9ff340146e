"""Limits of a file, as users set them."""
