"""Threads, tasks, events and counters that every stage of a message needs."""
