"""Where an embedded broker keeps what it holds: in memory, or in a folder as Apache Kafka lays it out."""
