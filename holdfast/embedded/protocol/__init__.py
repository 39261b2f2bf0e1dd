"""Kafka's messages on the wire: the table of their fields, and a codec that is driven by it."""
