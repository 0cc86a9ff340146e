"""
Add commands to ``manage.py``.

Imports the public names.
"""
