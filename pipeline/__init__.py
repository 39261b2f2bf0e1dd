"""The Spark side: land, replay, verify. Heavy imports stay inside functions."""
