"""The reach of a reply, and the reach that a query asks for: an offset, or one for each of several
sources.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from aiohttp import web

from holdfast.agents.serving import GlobalReplica, Replica
from holdfast.agents.web.replies import RequestRefused, malformed
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import TOPIC_IDS, AtOffset


def as_of(replica: Replica) -> dict[str, Any]:
    """Return a reply's fields about its reach, and its start if that is not the beginning."""
    told: dict[str, Any] = {"as_of_offset": replica.applied}
    told |= by_source("as_of", replica.processor, replica.offsets.values())
    if partial := replica.partial:
        told["partial"] = dict(partial)
    return {**told, **ids_of(replica)}


def by_source(name: str, processor: Processor[Any, Any], values: Iterable[int]) -> dict[str, Any]:
    """Return field *name* of a reply, with a value for each source that users name; no field with `source=`,
    where one number is all there is.
    """
    found = dict(zip(processor.named_sources, values, strict=False))
    return {name: found} if found else {}


def ids_of(served: Replica | GlobalReplica) -> dict[str, Any]:
    """Return a reply's field about the topics that its offsets are of, if they are known."""
    return {"topic_ids": dict(topic_ids)} if (topic_ids := served.topic_ids) else {}


def require_topics(
    request: web.Request, whose: str, topics: Collection[str], served: Replica | GlobalReplica
) -> None:
    """Refuse a request with offsets of other topics than *whose* table is folded from, which are *topics*."""
    if (text := request.headers.get(TOPIC_IDS)) is None:
        return
    known = served.topic_ids
    for each in text.split(","):
        topic, colon, asked = each.strip().rpartition(":")
        if not colon or topic not in topics:
            raise malformed(
                f"{TOPIC_IDS} is {text[:200]!r}; write TOPIC:ID once for each source of {whose}, as"
                f" topic_ids of a reply has them; its sources: {', '.join(topics)}"
            )
        if known.get(topic, asked) != asked:
            raise RequestRefused(
                409,
                "other_topic",
                f"the offset asked for is of topic {topic} with id {asked[:40]}, and {whose} is folded from"
                f" one of that name with id {known[topic]}: the topic was deleted and made again, and an"
                " offset in one means nothing in the other; ask without it, or for that of a record written"
                " or an answer given since",
            )


def wanted_of(processor: Processor[Any, Any], asked: AtOffset | None) -> AtOffset | None:
    """Return the offset to be reached, as the table knows it; refuse one that names no offset of its
    sources.
    """
    if asked is None or (isinstance(asked, int) and not processor.named_sources):
        return asked
    topics = processor.topics
    if isinstance(asked, int):
        example = ",".join(f"{topic}:{asked}" for topic in topics)
        raise malformed(
            f"at-offset={asked} names no source, and {processor.name} folds {len(topics)}; write"
            f" at-offset={example}, or some of these"
        )
    if strange := sorted(asked.keys() - set(topics)):
        raise malformed(
            f"at-offset names {strange[0]}, which {processor.name} does not fold; its sources:"
            f" {', '.join(topics)}"
        )
    return asked if processor.named_sources else asked[processor.topics[0]]


def has_reached(replica: Replica, wanted: AtOffset) -> bool:
    """Return whether the replica's state holds the *wanted* offset."""
    if isinstance(wanted, int):
        return replica.applied >= wanted
    return all(replica.offsets[topic] >= offset for topic, offset in wanted.items())


def shown_offsets(offsets: int | Mapping[str, int]) -> str:
    """Return offsets as a query writes them.

    >>> shown_offsets(7), shown_offsets({"orders": 7, "customers": 2})
    ('7', 'orders:7,customers:2')
    """
    if isinstance(offsets, int):
        return str(offsets)
    return ",".join(f"{topic}:{offset}" for topic, offset in offsets.items())
