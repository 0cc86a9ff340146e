"""Words: values only, which know nothing of the house."""
