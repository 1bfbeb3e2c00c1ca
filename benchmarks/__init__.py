"""Benchmarks: what retryapp costs, compared with what a user would write instead. `python -m benchmarks --help`."""
