"""Seeing: what can be read of the boxes, and the rules that must hold in them."""
