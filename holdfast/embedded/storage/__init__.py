"""An embedded broker's data: in memory, or in a folder as Apache Kafka lays it out."""
