"""Threads and events that every stage of a message needs."""
