"""
Find past messages: pages, threads, words.

Imports core, file and message; never another feature.
"""
