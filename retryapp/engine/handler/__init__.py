"""The user's function: how it is called, and what it publishes."""
