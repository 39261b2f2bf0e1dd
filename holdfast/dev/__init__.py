"""A local Kafka broker, the demo, and fixtures for tests."""
