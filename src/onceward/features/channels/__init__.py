"""Channels of a home: members, posts, their order and history."""
