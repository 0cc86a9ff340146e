"""The directory of a home: its agents, and the files of others that are open."""
