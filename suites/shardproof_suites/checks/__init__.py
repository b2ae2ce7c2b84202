"""Check functions: what the cases of several areas do."""
