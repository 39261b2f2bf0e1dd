"""The logs that a table was folded from: Kafka's ids of its sources. A topic that is deleted and created
again under its name is another log.

A note on the changelog, `00 source-ids`, in the first transaction, and in the next one of a worker that finds
none. It is bookkeeping, as that of lost heads. It bears the cluster's id: a cluster that was copied has ids
of its own, which prove nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from holdfast.core.engine.state.codec import META
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChangelogError

SOURCE_IDS = META + b"source-ids"
SOURCE_IDS_FORMAT = 1
NO_TOPIC_ID = "A" * 22
"""The topic id in answers of brokers before Kafka 2.8: 16 bytes of zero."""


class SourceIds(msgspec.Struct, frozen=True, array_like=True):
    """Kafka's ids of *topics*, by name, in one cluster."""

    format: int
    cluster_id: str
    topics: dict[str, str]

    def known(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of those of *topics* that have one.

        >>> SourceIds(1, "c", {"orders": "a", "old": NO_TOPIC_ID}).known(["orders", "old", "new"])
        {'orders': 'a'}
        """
        found = {topic: self.topics.get(topic, NO_TOPIC_ID) for topic in topics}
        return {topic: topic_id for topic, topic_id in found.items() if topic_id != NO_TOPIC_ID}

    def other_logs(self, now: SourceIds, folded: Collection[str]) -> list[str]:
        """Return those of *folded*, topics that a state has records of, that have been made again since these
        were noted.

        >>> noted = SourceIds(1, "c", {"orders": "a", "customers": "b"})
        >>> noted.other_logs(SourceIds(1, "c", {"orders": "x", "customers": "y"}), ["orders"])
        ['orders']
        >>> noted.other_logs(SourceIds(1, "copied", {"orders": "x"}), ["orders"])
        []
        """
        if self.cluster_id != now.cluster_id:
            return []
        return sorted(
            topic for topic in folded if self.topics.get(topic, now.topics[topic]) != now.topics[topic]
        )


_encode = msgspec.msgpack.Encoder(order="sorted").encode
_decode = msgspec.msgpack.Decoder(SourceIds).decode


def encode_source_ids(ids: SourceIds) -> bytes:
    """Return the value of the note."""
    return _encode(ids)


def decode_source_ids(value: bytes | None) -> SourceIds | None:
    """Return the ids in the note *value*, None without one; ChangelogError for bytes that no worker of this
    format wrote.
    """
    if value is None:
        return None
    try:
        note = _decode(value)
    except UNFIT as error:
        raise ChangelogError(
            f"the note of the sources' ids is malformed ({error}): no worker wrote it"
        ) from error
    if note.format != SOURCE_IDS_FORMAT:
        raise ChangelogError(
            f"the note of the sources' ids has format {note.format}, this version reads {SOURCE_IDS_FORMAT}:"
            " upgrade the workers"
        )
    return note
