"""Hypothesis for a shared machine: no deadline on single examples, no files left behind."""

from hypothesis import settings

settings.register_profile("retryapp", deadline=None, database=None, print_blob=True)
settings.load_profile("retryapp")
