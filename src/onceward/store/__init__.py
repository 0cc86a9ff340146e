"""All SQL, one file for each table or question."""
