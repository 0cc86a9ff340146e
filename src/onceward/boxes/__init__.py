"""Boxes: the tables, and beside each the verbs that change it."""
