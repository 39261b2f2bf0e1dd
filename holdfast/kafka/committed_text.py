"""The text that a group has committed with an offset, as librdkafka's clients hand it out."""

from __future__ import annotations

from confluent_kafka import TopicPartition


def committed_text(place: TopicPartition) -> str:
    """Return the metadata of a committed offset as confluent-kafka reads it: it copies the text without its
    end, so other bytes may follow, which need not be UTF-8.
    """
    try:
        return place.metadata or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")
