"""The partitions that a worker holds, as the web port and the metrics use them.
`agents/partitions/manager.py` provides it.

Everything here is called on the event loop, and nothing but `reached`, and `read` of a global, waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.merge.global_copies import GlobalView
from holdfast.tables.held_origins import HeldOrigin

T = TypeVar("T")

UNKNOWN = -1


class ReplicaState(Protocol):
    """The committed state of one moment, held until it is closed."""

    @property
    def applied(self) -> int: ...

    @property
    def stream_ms(self) -> int: ...

    @property
    def offsets(self) -> Sequence[int]:
        """Return the last offset of each source."""
        ...

    @property
    def position(self) -> bytes:
        """Return the position as stored, where there are several sources, else nothing."""
        ...

    @property
    def changelog_next(self) -> int:
        """Return the changelog offset before which that state lies."""
        ...

    def step(self, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to *limit* stored keys and values from *start* on, none when there are no more;
        StoreError once it is closed.
        """
        ...

    def close(self) -> None: ...


class Replica(Protocol):
    """One partition of one table as this worker holds it now. Reads see committed state only."""

    @property
    def processor(self) -> Processor[Any, Any]: ...

    @property
    def partition(self) -> int: ...

    @property
    def active(self) -> bool:
        """Return whether this worker folds the partition (else it is a standby)."""
        ...

    @property
    def role(self) -> str:
        """Return this worker's role for the partition: "active", "standby", or "earlier" for the state it
        keeps of an earlier version.
        """
        ...

    @property
    def serving(self) -> bool:
        """Return whether reads may be answered:

        False while restoring, and from the moment the partition may have another owner.
        """
        ...

    @property
    def stalled(self) -> str | None:
        """Return why an active partition is not folded further: it waits for what its fold needs, or for a
        person.
        """
        ...

    @property
    def applied(self) -> int:
        """Return the last source offset in the state, -1 for none. Of several sources: how many of their
        offsets are in it, less one.

        Reads that begin now reflect at least that.
        """
        ...

    @property
    def stream_ms(self) -> int:
        """Return the highest append time among the records in the state, -1 for none."""
        ...

    @property
    def held_back(self) -> list[HeldOrigin]:
        """Return the origins that windows or a join wait for: by how much event time, and for how long."""
        ...

    @property
    def late(self) -> tuple[int, int] | None:
        """Return how many records were late, and how many only since their origin had let go; None of a table
        that is not of windows or an interval join.
        """
        ...

    @property
    def source_end(self) -> int:
        """Return the next offset to be written at the source, as last received from the broker; UNKNOWN (-1)
        before that. Of several sources, the sum.
        """
        ...

    @property
    def offsets(self) -> Mapping[str, int]:
        """Return the last offset in the state of each source, -1 for none. Asked of tables of several
        alone.
        """
        ...

    @property
    def partial(self) -> Mapping[str, int]:
        """Return of each source whose head was deleted before this version began the first offset that was
        there.
        """
        ...

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Return Kafka's ids of the sources that its offsets belong to, by topic, where they are known."""
        ...

    @property
    def source_ends(self) -> Mapping[str, int]:
        """Return the end of each source, as `source_end` does. Asked of tables of several alone."""
        ...

    @property
    def current_ms(self) -> int:
        """Return the latest time (this worker's clock, ms) at which the state is known to have held all that
        was committed.

        For a standby: when the end of its changelog was last asked for, if it has since read up to that end.
        UNKNOWN (-1) when it never has: then the append time of its last record is all that bounds its age.
        Not asked of an active replica.
        """
        ...

    @property
    def changelog_next(self) -> int:
        """Return the changelog offset that is read next."""
        ...

    @property
    def changelog_end(self) -> int:
        """Return where the changelog ended when it was last read here; UNKNOWN (-1) before that."""
        ...

    def get(self, key: str, table: str = "") -> bytes | None:
        """Return the stored row of *key* in a named table, or in the processor's own."""
        ...

    def get_many(self, keys: Sequence[str], table: str = "") -> list[bytes | None]: ...

    def scan(self, prefix: str, after: str | None, limit: int, table: str = "") -> list[tuple[str, bytes]]:
        """Return up to *limit* rows with *prefix* and keys above *after*, in the order of the keys' UTF-8
        bytes.
        """
        ...

    def approximate_rows(self) -> int: ...

    def pin(self) -> ReplicaState:
        """Return the committed state of now; close it when done."""
        ...

    async def reached(self, wanted: int | Mapping[str, int], timeout_s: float) -> bool:
        """Wait until `applied` is at least *wanted*, or `offsets` are where it names sources; False when time
        ran out or the partition went away first.
        """
        ...


class GlobalReplica(Protocol):
    """This worker's copy of a global table. Reads see committed records only."""

    @property
    def table(self) -> Global[Any]: ...

    @property
    def applied(self) -> Mapping[int, int]:
        """Return the last offset in the copy of each partition of the topic, -1 for none."""
        ...

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Return Kafka's id of the topic by its name, where it is known."""
        ...

    @property
    def lags(self) -> Mapping[int, int]:
        """Return how many offsets of each partition are not in the copy, as far as the ends are known."""
        ...

    @property
    def failures(self) -> Mapping[int, int]:
        """Return how many records of each partition the copy has refused."""
        ...

    def unready(self) -> str | None:
        """Return why the copy may not be read yet, None when it may."""
        ...

    def approximate_rows(self) -> int: ...

    async def read(self, work: Callable[[GlobalView], T]) -> T:
        """Return the result of *work* on the copy as it is now, off the event loop; StoreError once it is
        closed.
        """
        ...

    async def reached(self, wanted: Mapping[int, int], timeout_s: float) -> bool:
        """Wait until the copy holds the offsets *wanted* by partition; False when time ran out first."""
        ...


class Serving(Protocol):
    """The tables that this worker serves, and the workers that serve the rest."""

    def tables(self) -> Mapping[str, Processor[Any, Any]]:
        """Return every table of the application by its processor's name."""
        ...

    def global_tables(self) -> Mapping[str, GlobalReplica]:
        """Return this worker's copies of the global tables that its processors read, by name."""
        ...

    def partitions(self, table: str) -> int:
        """Return how many partitions *table* (that is, its source) has; 0 while that is unknown."""
        ...

    def lookup(self, table: str, partition: int) -> Replica | None:
        """Return this worker's present replica of the partition, active or standby."""
        ...

    def earlier(self, table: str, partition: int) -> Replica | None:
        """Return this worker's replica of the partition in an earlier version that is no longer folded."""
        ...

    def earlier_version(self, table: str) -> int | None:
        """Return the version that this worker keeps, or is about to; None for none."""
        ...

    def building(self, table: str, partition: int) -> str | None:
        """Return why the partition is not read yet in the version that runs here: it has not caught up with
        the current one; None when it may be.
        """
        ...

    def waiting(self, table: str, partition: int) -> bool:
        """Return whether a partition that is not read yet has folded all there is, and waits for partitions
        that old workers have.
        """
        ...

    def owner(self, table: str, partition: int) -> str | None:
        """Return the URL of the worker that folds the partition, this one's own included, as far as this
        worker knows.
        """
        ...

    def unreadable(self) -> Collection[tuple[str, int]]:
        """Return the source partitions (topic, number) whose next batch cannot be read."""
        ...

    def unready(self) -> str | None:
        """Return why some assigned partition is not serving; None when all are."""
        ...
