"""Past messages: pages, threads, words."""
