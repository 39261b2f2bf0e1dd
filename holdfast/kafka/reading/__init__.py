"""Logs read by librdkafka's consumers: to their ends, past skipped batches, and past unreadable ones."""
