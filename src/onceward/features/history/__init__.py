"""
Find past messages: pages, threads, full text.

Imports core, file and message; never another feature.
"""
