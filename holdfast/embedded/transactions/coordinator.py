"""Transactions of the embedded cluster: the model decides, its decisions are logged, and markers go into the
partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.transaction_state import (
    ID_BLOCK,
    IDS_KEY,
    PREPARED,
    AbortTimedOut,
    CoordinatorCommand,
    CoordinatorReply,
    CoordinatorRow,
    ExpireIds,
    MarkersWritten,
    ProducerIds,
    Transaction,
    TransactionState,
    transaction_key,
)
from holdfast.embedded.faults import RequestedFaults
from holdfast.embedded.groups.coordinator import EmbeddedGroups
from holdfast.embedded.internal_log import OFFSETS, TRANSACTIONS, Note, home_of, write_notes
from holdfast.embedded.kept_room import OVERHEAD_BYTES
from holdfast.embedded.logs.kept_rows import KeptRows
from holdfast.embedded.recurring import Recurring, set_apart
from holdfast.embedded.settings import EmbeddedSettings
from holdfast.embedded.storage.storage import BrokerStorage
from holdfast.embedded.topics.registry import TopicRegistry
from holdfast.embedded.transactions.loading import read_transactions
from holdfast.models.transaction_coordinator import coordinate, transaction_of

_encode = msgspec.msgpack.Encoder().encode
_EXPIRY_S = 3_600.0
_SETTLED = PREPARED | {TransactionState.ONGOING}
"""States that must be on the disk before anything else is written of the transaction: a batch of an unknown
transaction would hang, and markers without their decision might contradict each other.
"""


class EmbeddedTransactions:
    """All transactional ids of a cluster. A decision is complete, markers and all, before it is answered."""

    def __init__(
        self,
        topics: TopicRegistry,
        groups: EmbeddedGroups,
        settings: EmbeddedSettings,
        now_ms: Callable[[], int],
        faults: RequestedFaults,
        storage: BrokerStorage,
    ) -> None:
        self._faults, self._storage = faults, storage
        self._topics, self._groups, self._settings, self._now_ms = topics, groups, settings, now_ms
        self.rows: KeptRows[CoordinatorRow] = KeptRows(CoordinatorRow)
        self._aborting = Recurring(
            "the abort of transactions that are open for too long",
            settings.transaction_sweep_ms / 1000,
            self.abort_timed_out,
        )
        self._expiring = Recurring("the expiry of transactional ids", _EXPIRY_S, self.expire_ids)

    def get(self, transactional_id: str) -> Transaction | None:
        return transaction_of(self.rows, transactional_id)

    def every(self) -> Iterator[tuple[str, Transaction]]:
        """Yield each transactional id with its state."""
        for key, row in self.rows.scan("t/"):
            assert isinstance(row, Transaction)
            yield key.removeprefix("t/"), row

    def kept_bytes(self) -> int:
        """Return about how many bytes are kept of transactional ids."""
        return sum(OVERHEAD_BYTES + len(_encode([name, known])) for name, known in self.every())

    def do(self, command: CoordinatorCommand) -> CoordinatorReply:
        """Apply *command*, log the changes, and write the markers of decisions."""
        reply = self._decide(command)
        for transactional_id in reply.touched:
            self._carry_out(transactional_id)
        return reply

    def _decide(self, command: CoordinatorCommand) -> CoordinatorReply:
        reply = coordinate(
            self.rows,
            command,
            self._now_ms(),
            max_timeout_ms=self._settings.max_transaction_timeout_ms,
        )
        self._claim_ids()
        return reply

    def _carry_out(self, transactional_id: str) -> None:
        """Log the decision about an id, and write its markers."""
        self._log(transactional_id)
        known = self.get(transactional_id)
        if known is not None and known.state in _SETTLED:
            self._storage.settle()
        if known is not None and known.state in PREPARED:
            self.write_markers(transactional_id, known)

    def _claim_ids(self) -> None:
        """Have no producer id of the present block be given again, whatever happens."""
        ids = self.rows.get(IDS_KEY)
        if isinstance(ids, ProducerIds):
            self._storage.keep_producer_ids(ids.block_end)

    def load(self) -> None:
        """Load the written records of transactions, and complete those that were decided."""
        found = read_transactions(self._topics)
        for transactional_id, known in found.items():
            self.rows[transaction_key(transactional_id)] = known
        least = max((each.producer_id + 1 for each in found.values()), default=0)
        first = max(self._storage.producer_ids, least)
        if first:
            self.rows[IDS_KEY] = ProducerIds(first, first + ID_BLOCK)
            self._claim_ids()
        for transactional_id, known in found.items():
            if known.state in PREPARED:
                self.write_markers(transactional_id, known)

    def write_markers(self, transactional_id: str, decided: Transaction) -> None:
        """Write the marker of a decided transaction into each of its partitions, and complete it."""
        commit = decided.state is TransactionState.PREPARE_COMMIT
        for place in decided.partitions:
            self.mark(place, decided, commit=commit)
        self._storage.settle()  # what says that all are there comes after them
        self.do(MarkersWritten(transactional_id=transactional_id))

    def mark(self, place: Place, decided: Transaction, *, commit: bool) -> None:
        """Write one marker; a partition that is gone needs none."""
        partition = self._topics.partition(*place)
        if partition is None or self._faults.loses_marker():
            return
        partition.log.end(
            decided.producer_id,
            decided.epoch,
            commit=commit,
            coordinator_epoch=decided.coordinator_epoch,
            leader_epoch=partition.leader_epoch,
            now_ms=self._now_ms(),
        )
        partition.log.replicated(partition.log.end_offset)
        if partition.topic == OFFSETS:
            self._groups.decided(partition.index, decided.producer_id, commit=commit)

    def _log(self, transactional_id: str) -> None:
        known = self.get(transactional_id)
        home = home_of(self._topics, TRANSACTIONS, transactional_id)
        note = Note(
            "TransactionLog",
            {"transactional_id": transactional_id},
            None if known is None else _value(known),
        )
        write_notes(home, [note], self._now_ms())

    # -- sweeps

    def start(self) -> None:
        """Begin to look for transactions that are open for too long, and ids that are no longer used."""
        self._aborting.start()
        self._expiring.start()

    def abort_timed_out(self) -> None:
        """Abort transactions that are open for too long, and complete those decided before that failed to be
        carried out: otherwise their producers would get the answer to wait for ever.
        """
        self._decide(AbortTimedOut())
        for transactional_id in [name for name, known in self.every() if known.state in PREPARED]:
            with set_apart(f"the end of transaction {transactional_id}", self._aborting.every_s):
                self._carry_out(transactional_id)

    def expire_ids(self) -> None:
        """Forget ids that are no longer used."""
        for transactional_id in self._decide(ExpireIds()).touched:
            with set_apart(f"the expiry of transactional id {transactional_id}", _EXPIRY_S):
                self._carry_out(transactional_id)

    def close(self) -> None:
        """Sweep no more."""
        self._aborting.close()
        self._expiring.close()


def _value(known: Transaction) -> dict[str, object]:
    topics: dict[str, list[int]] = {}
    for topic, index in known.partitions:
        topics.setdefault(topic, []).append(index)
    written = [{"topic": topic, "partition_ids": indexes} for topic, indexes in topics.items()]
    return {
        "producer_id": known.producer_id,
        "previous_producer_id": known.previous_producer_id,
        "next_producer_id": known.next_producer_id,
        "producer_epoch": known.epoch,
        "transaction_timeout_ms": known.timeout_ms,
        "transaction_status": known.state,
        "transaction_partitions": None if known.state is TransactionState.EMPTY else written,
        "transaction_last_update_timestamp_ms": known.updated_ms,
        "transaction_start_timestamp_ms": known.started_ms,
        "client_transaction_version": known.client_version,
    }
