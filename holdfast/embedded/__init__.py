"""A Kafka broker within one Python process, for development and tests (docs/embedded.md)."""
