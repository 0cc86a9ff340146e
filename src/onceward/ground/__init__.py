"""Ground and contracts: the file itself, its one writer, and what engines and transports have agreed on."""
