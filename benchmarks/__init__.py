"""Measures of what shardproof costs, beside what else there is, in one run."""
