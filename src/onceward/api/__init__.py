"""
Hold what users hold: postbox, session, their async faces, and the list of features.

Imports core, features, transports, file and message.
"""
