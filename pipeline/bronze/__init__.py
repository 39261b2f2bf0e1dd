"""The lake as Kafka left it: tables of records, and how much of a source they hold."""
