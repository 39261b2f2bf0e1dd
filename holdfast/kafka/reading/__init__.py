"""Logs read by librdkafka's consumers: to their ends, past what is skipped, and past what cannot be read."""
