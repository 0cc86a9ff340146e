"""
Define what users hold: postbox, session, their async versions, and the list of features.

Imports core, features, transports, file and message.
"""
