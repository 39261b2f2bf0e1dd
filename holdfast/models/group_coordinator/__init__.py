"""The classic group coordinator, with Kafka's states, timers and error codes."""
