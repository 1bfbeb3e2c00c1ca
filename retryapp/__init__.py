"""retryapp."""
