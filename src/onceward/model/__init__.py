"""Define the values of the package: messages, parcels, states, settings. No I/O."""
