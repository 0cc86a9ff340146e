"""
Keep the rows of Django's ORM in an agent's file: ``ENGINE`` of a database.

Imports the public names, integrations/django, integrations/dbapi, file and message.
"""
