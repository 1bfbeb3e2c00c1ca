"""Benchmarks: what retryapp costs, beside what a competent user would write instead. `python -m benchmarks --help`."""
