"""
Connect onceward with other libraries; each module needs the extra of its name.

Imports the public names, file and message.
"""
