"""A real Kafka on this machine: one node or three."""
