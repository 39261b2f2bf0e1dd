"""Commands on claim groups and the groups of Kafka."""
