"""Adapters: what makes an implementation look like the suites' protocol."""
