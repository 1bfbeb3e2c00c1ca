"""One partition of one handler: what is delivered, and when, around one lane."""
