"""Seeing: what reads the boxes, and the rules that must hold in them; it writes nothing but indexes of its own."""
