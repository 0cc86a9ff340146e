"""Run all SQL of the package, one module for each table or question."""
