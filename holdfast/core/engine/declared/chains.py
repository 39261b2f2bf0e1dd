"""Chains: processors that read what others of the application emit, and are raised to another version
together.

A new version folds its source from the beginning and emits all of it again. So it emits to a topic of its
own, and the readers of that topic begin again as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.streams import Internal
from holdfast.errors import ChainError


def why_broken(processors: Sequence[Processor[Any, Any]]) -> Iterator[tuple[str, str]]:
    """Yield (topic, fault with its remedy) for each chain that the declarations show to be broken."""
    read: dict[str, list[Processor[Any, Any]]] = {}
    for processor in processors:
        for topic in processor.topics:
            read.setdefault(topic, []).append(processor)
    bases = {
        topic.base: (topic, each)
        for each in processors
        for topic in each.emits
        if isinstance(topic, Internal)
    }
    for writer in processors:
        for topic in writer.emits:
            readers = read.get(topic, [])
            if isinstance(topic, Internal):
                for each in readers:
                    if topic not in each.internal:
                        yield (
                            str(topic),
                            (
                                f"processor {each.name} names it as text, so its position would not tell the"
                                f" version: take the source from {writer.name}, which declares it"
                            ),
                        )
            elif readers and _emits_again(writer, topic):
                again = ", ".join(sorted(each.name for each in readers))
                what = listed(raised(processors, {each.name for each in readers}))
                why = (
                    f"version {writer.version} of {writer.name} emits to it what the versions before have"
                    f" emitted, and {again} would take that in twice: {_silent_or(writer)}declare the topic"
                    f" as Internal(..., version={writer.version}), and raise {what}"
                )
                yield str(topic), why
    for reader in processors:
        for old in reader.internal:
            if old.base in bases and (new := bases[old.base])[0] != old:
                yield (
                    str(old),
                    (
                        f"{new[1].name} emits to {new[0]} now: have {reader.name} read that, and raise"
                        f" {listed(raised(processors, {reader.name}))}"
                    ),
                )


def _emits_again(writer: Processor[Any, Any], topic: str) -> bool:
    """Return whether a version emits to a plain *topic* what the versions before it have emitted there."""
    return writer.version > 1 and not writer.hands_over and not bears_version(topic, writer.version)


def _silent_or(writer: Processor[Any, Any]) -> str:
    """Return the first remedy: a version that emits nothing up to the position of the version before emits
    nothing twice, so no other processor needs a new version.
    """
    return "" if writer.internal else f'declare {writer.name} with emits_from="handover"; or '


def require_chains(processors: Sequence[Processor[Any, Any]]) -> None:
    """Raise ChainError for declarations of which one is of another version than those that depend on it."""
    if wrong := [f"topic {topic}: {why}" for topic, why in why_broken(processors)]:
        raise ChainError("; ".join(wrong))


def bears_version(topic: str, version: int) -> bool:
    """Return whether a topic's name is one that is made for *version* of its writer, as those of `Internal`
    are: it ends in `.v2`.

    Names that hold the number elsewhere may have been there before: "region-2" bears no version.

    >>> bears_version("words.v2", 2), bears_version("region-2", 2), bears_version("topic_2", 2), bears_version("stage.2.words", 2)
    (True, False, False, False)
    """  # noqa: E501
    return topic.endswith(f".v{version}")


def spoken_topics(processors: Collection[Processor[Any, Any]]) -> frozenset[str]:
    """Return the topics whose partitions will all hear of origins from one of *processors*: what knows event
    time, or reads such a topic.
    """
    found: set[str] = set()
    while True:
        more = {
            topic
            for each in processors
            if not found.isdisjoint(each.topics) or (clock := each.origin_clock()) is None or clock.speaks
            for topic in each.told_topics
        }
        if more == found:
            return frozenset(found)
        found = more


def behind(processors: Sequence[Processor[Any, Any]], names: Collection[str]) -> set[str]:
    """Return the names of those that read what these emit, or what those emit again, and so on."""
    found: set[str] = set()
    ahead = set(names)
    while ahead:
        emitted = {topic for each in processors if each.name in ahead for topic in each.emits}
        ahead = {each.name for each in processors if emitted.intersection(each.topics)} - found
        found |= ahead
    return found


def raised(processors: Sequence[Processor[Any, Any]], names: Collection[str]) -> list[tuple[str, int]]:
    """Return the processors to upgrade with these (all downstream ones), with their new versions, by name.

    >>> raised([], [])
    []
    """
    wanted = {*names, *behind(processors, names)}
    return [
        (each.name, each.version + 1)
        for each in sorted(processors, key=lambda each: each.name)
        if each.name in wanted
    ]


def listed(versions: Sequence[tuple[str, int]]) -> str:
    """Return names and versions as text.

    >>> listed([("counts", 2), ("totals", 5)])
    'counts to version 2, totals to version 5'
    """
    return ", ".join(f"{name} to version {version}" for name, version in versions)
