"""
Hold one module for each command.

Imports integrations/django.
"""
