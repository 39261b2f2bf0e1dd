"""The log of a topic, wherever its records are: in Kafka, in the lake, or in the lake up to its end."""
