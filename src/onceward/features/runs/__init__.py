"""Sessions that collect messages into runs, in five modes."""
