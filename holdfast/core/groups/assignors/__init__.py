"""Kafka's four assignors, with Kafka's exact results."""
