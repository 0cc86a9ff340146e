"""Store the directory of a home: agents, channels, mailboxes and subscriptions."""
