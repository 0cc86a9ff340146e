"""
Run the statements of an ORM, by PEP 249, in the transactions of an open postbox.

Imports the public names and file.
"""
