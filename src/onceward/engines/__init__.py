"""Engines: what runs in the background, from box to box and from box to handler."""
