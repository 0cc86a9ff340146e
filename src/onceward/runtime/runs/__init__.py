"""Sessions with runs: schedule, execute, complete."""
