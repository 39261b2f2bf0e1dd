"""Holds the committed state of one partition: position, rows, and notes about its logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import Position, counted, earlier_format, position_format
from holdfast.core.engine.state.base import BASE
from holdfast.core.engine.state.codec import APPLIED, NOTHING_APPLIED, key_in_table
from holdfast.core.engine.state.lost_heads import LostHeads
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.transactions.transactional_producer import ProducerFactory
from holdfast.tables.pins import PinnedState
from holdfast.tables.rocks import Budget
from holdfast.tables.store import PartitionStore, StoreStamp

logger = logging.getLogger(__name__)

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The settings and services that the partitions of a worker share."""

    app: str
    data_dir: Path
    producer: ProducerFactory
    budget: Budget
    cluster_id: str
    changelog_ids: Mapping[str, str]
    cache_rows: int
    tombstones_kept_ms: int
    landed: frozenset[str] = frozenset()
    """Topics that keep only records that are not landed yet: their earlier records are in a lake."""


class CommittedState:
    """The committed state of one source partition of one processor.

    Reads show whole transactions only and are safe from any thread. `PartitionOwner` writes while this
    worker folds the partition, `ChangelogReplay` while it restores it or keeps it as a standby.
    """

    def __init__(
        self, processor: Processor[Any, Any], partition: int, environment: Environment, *, earlier: bool
    ) -> None:
        self.processor, self.partition, self.environment = processor, partition, environment
        self.changelog = processor.changelog(environment.app)
        stamp = StoreStamp(
            app=environment.app,
            processor=processor.name,
            version=processor.version,
            partition=partition,
            cluster_id=environment.cluster_id,
            changelog_id=environment.changelog_ids.get(self.changelog, ""),
        )
        self.positions = earlier_format(processor) if earlier else position_format(processor)
        path = environment.data_dir / processor.table / str(partition)
        self.store = PartitionStore(path, stamp, environment.budget, self.positions)
        self.head_of: Callable[[Place], int] = lambda place: 0
        """Returns where a source's log begins that was read from its beginning and has lost its head; 0 for
        all others.
        """

    def __str__(self) -> str:
        return f"{self.processor.table} partition {self.partition}"

    @property
    def position(self) -> Position:
        """Return the committed position."""
        return self.store.marker

    @property
    def applied(self) -> int:
        """Return the last source offset in the committed state; -1 for none. Of several sources: how many of
        their offsets are in it, less one.
        """
        return counted(self.store.marker.applied)

    @property
    def offsets(self) -> dict[str, int]:
        """Return the last offset in the committed state of each source; -1 for none."""
        return dict(zip(self.processor.topics, self.store.marker.applied, strict=True))

    @property
    def partial(self) -> LostHeads:
        """Return the lost heads of the sources: records deleted before this table began are not in its state.
        The value is the first offset that was there, by topic.
        """
        return {**self.store.lost_heads, **self.heads_before(self.store.marker.applied)}

    def heads_before(self, offsets: Sequence[int]) -> dict[str, int]:
        """Return the lost heads of the sources of which nothing is in a state at *offsets*."""
        if NOTHING_APPLIED not in offsets:
            return {}
        return {
            place[0]: head
            for place, offset in zip(self.places, offsets, strict=True)
            if offset == NOTHING_APPLIED and (head := self.head_of(place))
        }

    @property
    def places(self) -> list[Place]:
        """Return the source partitions that are folded, in the order of their numbers."""
        return [(topic, self.partition) for topic in self.processor.topics]

    @property
    def choices_topics(self) -> tuple[str, ...]:
        """Return the topics in which choices of the order of sources are recorded."""
        return self.processor.choices_topics(self.environment.app)

    @property
    def stream_ms(self) -> int:
        return self.store.marker.stream_ms

    @property
    def changelog_next(self) -> int:
        return self.store.changelog_next

    @property
    def touched_ms(self) -> int:
        return self.store.touched_ms

    @property
    def whole(self) -> bool:
        """Return False while the store holds a part of a transaction that its changelog has still to bring
        whole.
        """
        return self.store.whole

    @property
    def has_begun(self) -> bool:
        """Return whether it has a state, a base that may be empty, or a note of the handover."""
        store = self.store
        return self.applied != NOTHING_APPLIED or store.handover is not None or store.get(BASE) is not None

    @property
    def is_blank(self) -> bool:
        """Return whether its changelog holds no position at all, not even that of a beginning."""
        return self.store.get(APPLIED) is None

    @property
    def cut_at(self) -> int:
        """Return the changelog offset before which records of this state are gone; 0 for none."""
        first, recovery = self.store.read_from, self.store.recovery
        return 0 if first <= (0 if recovery is None else recovery.log_start) else first

    @property
    def changelog_id(self) -> str:
        """Return the id that Kafka gave its changelog."""
        return self.environment.changelog_ids.get(self.changelog, "")

    @property
    def has_base(self) -> bool:
        """Return whether it began with rows that no source has."""
        return self.store.get(BASE) is not None

    def reads_from(self, offset: int) -> None:
        """Note that its changelog is read from *offset* on, since nothing is left before."""
        self.store.reads_from(offset)

    def made_again(self) -> str:
        return (
            f"{self.changelog} was deleted and made again while a worker wrote to it, and holds only a part"
            " of the state: stop all workers of this application, delete it once more, run `holdfast topics"
            f" create` and start them; the state is then rebuilt from {', '.join(self.processor.topics)}"
        )

    @property
    def store_path(self) -> Path:
        return self.store.path

    @property
    def rotten(self) -> str | None:
        """Return why the store is not to be believed, None while it may be."""
        return self.store.rotten

    def condemn(self, cause: str) -> None:
        """Answer nothing from the store any more: it is rebuilt when the partition is next taken up."""
        self.store.condemn(cause)

    def get(self, key: str, table: str = "") -> bytes | None:
        return self.store.get(key_in_table(table, key))

    def get_many(self, keys: Sequence[str], table: str = "") -> list[bytes | None]:
        return self.store.get_many([key_in_table(table, key) for key in keys])

    def scan(self, prefix: str, after: str | None, limit: int, table: str = "") -> list[tuple[str, bytes]]:
        return self.store.page(prefix, after, limit, table)

    def everything(self) -> Iterable[tuple[bytes, bytes]]:
        return self.store.everything()

    def pin(self) -> PinnedState:
        """Return the committed state of now, to be read from any thread; it ends when the store is closed."""
        return self.store.pin()

    def approximate_rows(self) -> int:
        return self.store.approximate_rows()
