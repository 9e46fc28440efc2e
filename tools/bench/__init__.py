"""Benchmarks: each prints a table and appends a record under docs/benchmarks/."""
