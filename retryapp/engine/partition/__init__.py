"""One partition of one handler: what is delivered, parked and fired, around one lane."""
