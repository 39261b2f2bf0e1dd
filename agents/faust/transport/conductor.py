"""Passes the records of a topic to channels: to processors in batches, to agents each by itself.

Overrides private names of faust-streaming 0.15.3, which tests/agents/faust/test_contract.py holds us to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from faust.serializers import codecs
from faust.transport.conductor import Conductor
from faust.types import TP

AS_IS = "holdfast"
"""The serializer of a processor's own way in."""
BATCHES = "\0"
RESUBSCRIBE_S = 2.0


class AsIs(codecs.Codec):
    """Hands on what the transport delivers; decoding belongs to the processor."""

    def _loads(self, s: Any) -> Any:
        return s

    def _dumps(self, s: Any) -> Any:
        return s


codecs.register(AS_IS, AsIs())


def takes_batches(channel: Any) -> bool:
    """Return whether *channel* is a processor's own way in."""
    return getattr(channel, "value_serializer", None) == AS_IS


def batches_of(tp: TP) -> TP:
    """Return by which name the batches of a partition go that agents read too."""
    return TP(tp.topic + BATCHES, tp.partition)


class SharingConductor(Conductor):
    """Hands batches to processors and records to agents, where both read a topic.

    Such partitions are `shared`. The transport gives the batches of those to `batches_of` the partition.
    """

    app: Any
    _tp_index: Any
    _resubscribe_sleep_lock_seconds = RESUBSCRIBE_S
    """Stock waits 45 s with a topic that an agent names only after it has waited for something itself."""

    def __init__(self, app: Any, **options: Any) -> None:
        self.shared: frozenset[TP] = frozenset()
        super().__init__(app, **options)

    @property
    def wanted(self) -> frozenset[str]:
        """Every topic that an agent, a stream or a processor of this worker reads."""
        return frozenset(topic for channel in self for topic in channel.topics)

    async def _update_indices(self) -> Iterable[str]:
        # Before they are subscribed to: a topic that is made later would have no reader until metadata are
        # old.
        for channel in self.app.derived:
            await channel.maybe_declare()
        return await super()._update_indices()

    def _update_callback_map(self) -> None:
        shared = set()
        for tp, channels in self._tp_index.items():
            batched = {channel for channel in channels if takes_batches(channel)}
            single = channels - batched
            if batched and single:
                shared.add(tp)
                self._tp_to_callback[batches_of(tp)] = self._build_handler(tp, batched)
            self._tp_to_callback[tp] = self._build_handler(tp, single or batched)
        self.shared = frozenset(shared)
