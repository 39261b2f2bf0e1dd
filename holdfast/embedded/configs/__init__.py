"""Settings of topics and brokers, as Kafka's clients name them."""
