"""The door of `pytest --pyargs shardproof_suites --implementation ...`."""

from shardproof_suites import conformance

test_conformance = conformance()
