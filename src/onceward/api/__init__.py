"""The objects that users hold: postbox, session, channels, mailboxes, and their async faces."""
