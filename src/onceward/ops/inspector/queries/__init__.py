"""All SQL of the inspector: one module per page, on the public views only."""
