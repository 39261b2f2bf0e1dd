from confluent_kafka import Producer

from holdfast.embedded.kafka import EmbeddedKafka


def count(kafka: EmbeddedKafka, topic: str) -> int:
    """Send three records to a topic of *kafka*, and return how many it then has."""
    kafka.create_topic(topic, partitions=1)
    producer = Producer(kafka.client_config())
    for word in ("to", "be", "or"):
        producer.produce(topic, word)
    producer.flush(10)
    partition = kafka.cluster.topics.partition(topic, 0)
    return 0 if partition is None else partition.log.end_offset


def test_count(embedded_kafka: EmbeddedKafka) -> None:
    assert count(embedded_kafka, "words") == 3


if __name__ == "__main__":
    with EmbeddedKafka() as kafka:
        print(count(kafka, "words"))
