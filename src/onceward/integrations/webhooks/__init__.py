"""
Take the webhooks of third parties as messages.

Imports the public names and message.
"""
