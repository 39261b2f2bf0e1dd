"""A cluster in a folder without sockets: requests of clients, and the remains of a power cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from holdfast.core.kafka.producer_state import AppendOutcome, Code
from holdfast.core.kafka.record_batch import (
    TRANSACTIONAL_BIT,
    ControlType,
    RecordBatch,
    control_of,
    decode_batch,
    decode_header,
)
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.transaction_state import AddPartitions, EndTransaction, InitProducerId
from holdfast.embedded.cluster import EmbeddedCluster
from holdfast.embedded.groups.group import CommittedOffset
from holdfast.embedded.settings import EmbeddedSettings
from holdfast.embedded.storage.disk import Disk
from holdfast.embedded.storage.folder import FolderStorage
from holdfast.embedded.topics.partition import EmbeddedPartition
from holdfast.embedded.topics.registry import TopicRefusal
from holdfast.errors import BrokerFolderError
from tests.embedded.transcripts.asking import batch

TIMEOUT_MS = 60_000


def fail(error: BrokerFolderError) -> None:
    """Reaction of a test's cluster to a failed folder: none, because the write has raised the error."""


@contextmanager
def cluster_in(folder: Path, *, fsync: bool = False, disk: Disk | None = None) -> Iterator[EmbeddedCluster]:
    """Give the cluster of *folder*, opened; it ends in order unless something is raised."""
    told = EmbeddedSettings(folder=folder, fsync=fsync, offsets_partitions=1, transaction_partitions=1)
    cluster = EmbeddedCluster(told, seed=1)
    if disk is not None:
        assert isinstance(cluster.storage, FolderStorage)
        cluster.storage.disk = disk
    try:
        cluster.open(fail)
        yield cluster
    except BaseException:
        leave(cluster)
        raise
    cluster.close()


def leave(cluster: EmbeddedCluster) -> None:
    """End as SIGKILL ends a process: nothing more is written, and the lock is gone."""
    cluster.pause()
    assert isinstance(cluster.storage, FolderStorage)
    cluster._is_open = False
    cluster.storage._let_go()  # the kernel would do this


def make_topic(cluster: EmbeddedCluster, name: str, partitions: int = 1, **configs: str) -> None:
    own = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    made = cluster.topics.make(name, num_partitions=partitions, configs=own)
    assert not isinstance(made, TopicRefusal), made


def partition(cluster: EmbeddedCluster, place: Place) -> EmbeddedPartition:
    found = cluster.topics.partition(*place)
    assert found is not None
    return found


def write(cluster: EmbeddedCluster, place: Place, *values: bytes, **told: Any) -> AppendOutcome:
    """Append a batch of *values*, the first of them their key, as a leader does once it was checked."""
    data = batch(*values, **{"key": values[0], "at_ms": cluster.now_ms(), **told})
    home = partition(cluster, place)
    header = decode_header(data)
    if header.is_transactional:
        home.log.begin_verification(header.producer_id, header.producer_epoch, header.base_sequence, 0)
    verdict = home.log.append(
        data,
        header,
        leader_epoch=home.leader_epoch,
        now_ms=cluster.now_ms(),
        is_append_time=False,
        verified=True,
    )
    home.log.replicated(home.log.end_offset)
    return verdict.outcome


class TransactionalWriter:
    """A producer with a transactional id; `begin` makes it the only one of that name."""

    def __init__(self, cluster: EmbeddedCluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._sequences: dict[Place, int] = {}

    def begin(self) -> tuple[int, int]:
        """Return producer id and epoch; a transaction open under the name is aborted."""
        while True:
            command = InitProducerId(transactional_id=self._name, timeout_ms=TIMEOUT_MS)
            reply = self._cluster.transactions.do(command)
            if reply.error is not Code.CONCURRENT_TRANSACTIONS:
                assert not reply.error
                self.producer = reply.producer_id, reply.epoch
                self._sequences.clear()
                return self.producer

    def write(self, place: Place, *values: bytes) -> None:
        producer_id, epoch = self.producer
        command = AddPartitions(
            transactional_id=self._name, producer_id=producer_id, epoch=epoch, partitions=(place,)
        )
        assert not self._cluster.transactions.do(command).error
        first = self._sequences.get(place, 0)
        told = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": first}
        outcome = write(self._cluster, place, *values, attributes=TRANSACTIONAL_BIT, **told)
        assert outcome is AppendOutcome.ACCEPTED
        self._sequences[place] = first + len(values)

    def commit_offset(self, group: str, place: Place, offset: int) -> None:
        producer_id, epoch = self.producer
        command = AddPartitions(
            transactional_id=self._name,
            producer_id=producer_id,
            epoch=epoch,
            partitions=(("__consumer_offsets", 0),),
        )
        self._cluster.topics.internal("__consumer_offsets")
        assert not self._cluster.transactions.do(command).error
        partition(self._cluster, ("__consumer_offsets", 0)).log.begin_verification(producer_id, epoch, -1, 0)
        opened = self._cluster.groups.opened(group)
        assert self._cluster.groups.commit_later(
            opened, {place: CommittedOffset(offset, -1, "", 0)}, self.producer
        )

    def end(self, *, commit: bool) -> None:
        producer_id, epoch = self.producer
        command = EndTransaction(
            transactional_id=self._name, producer_id=producer_id, epoch=epoch, commit=commit
        )
        assert not self._cluster.transactions.do(command).error


def committed(cluster: EmbeddedCluster, place: Place) -> list[bytes]:
    """Return the values that a reader of committed records finds, as clients filter the result of a fetch."""
    log = partition(cluster, place).log
    found = log.read(log.start_offset, log.last_stable_offset, 1 << 30, committed=True, one_at_least=True)
    aborted = sorted(found.aborted, key=lambda each: each.first_offset)
    gone: set[int] = set()
    values: list[bytes] = []
    for each in batches(found.batches):
        while aborted and aborted[0].first_offset <= each.last_offset:
            gone.add(aborted.pop(0).producer_id)
        if each.is_control:
            if control_of(each, each.records[0]).type is ControlType.ABORT:
                gone.discard(each.producer_id)
        elif not (each.is_transactional and each.producer_id in gone):
            offsets = [each.base_offset + record.offset_delta for record in each.records]
            values += [
                record.value or b""
                for record, offset in zip(each.records, offsets, strict=True)
                if offset >= log.start_offset
            ]
    return values


def batches(pieces: Iterable[bytes]) -> Iterator[RecordBatch]:
    data = b"".join(pieces)
    at = 0
    while at < len(data):
        yield decode_batch(data, at)
        at += decode_header(data, at).size_bytes


class PowerCut(BaseException):
    """The power is gone: no handler of errors sees it."""


class CutDisk(Disk):
    """Loses its power at the operation of number *at*, perhaps in the middle of it.

    Then `cut` has each file that was not synced end anywhere after its synced part, with partly random bytes,
    and each new file whose folder was not synced exist or not.
    """

    def __init__(self, *, at: int, chance: Random) -> None:
        super().__init__(fsync=True, limit_open=4)
        self._left, self._chance = at, chance
        self._synced: dict[Path, int] = {}
        self._new: set[Path] = set()
        self.is_cut = False

    def _write(self, descriptor: int, data: memoryview) -> int:
        if self._left <= 1:
            super()._write(descriptor, data[: self._chance.randrange(len(data) + 1)])
        self._step()
        return super()._write(descriptor, data)

    def _step(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.is_cut = True
            raise PowerCut

    def append(self, path: Path, data: bytes) -> None:
        self._synced.setdefault(path, path.stat().st_size)
        super().append(path, data)

    def create(self, path: Path) -> None:
        self._step()
        super().create(path)
        self._new.add(path)
        self._synced[path] = 0

    def write(self, path: Path, data: bytes) -> None:
        self._step()
        super().write(path, data)
        self._new.add(path)
        self._synced[path] = 0

    def rename(self, path: Path, to: Path) -> None:
        self._step()
        super().rename(path, to)
        self._synced[to] = self._synced.pop(path, 0)
        if path in self._new:
            self._new.discard(path)
            self._new.add(to)

    def remove(self, path: Path) -> None:
        if path.exists():
            self._step()
        super().remove(path)
        self._new.discard(path)

    def replace(self, path: Path, data: bytes) -> None:
        self._step()
        super().replace(path, data)

    def truncate(self, path: Path, size: int) -> None:
        self._step()
        super().truncate(path, size)
        self._synced[path] = min(size, self._synced.get(path, size))

    def sync_files(self, paths: Iterable[Path]) -> None:
        in_some_order = sorted(paths)
        self._chance.shuffle(in_some_order)
        for each in in_some_order:
            self._step()  # the disk itself is not asked: it would only take time
            if each.is_file():
                self._synced[each] = each.stat().st_size
            else:
                self._new = {new for new in self._new if new.parent != each}

    def cut(self) -> None:
        """Remove from the files any part that a power cut may remove."""
        for path, size in self._synced.items():
            if not path.exists():
                continue
            if path in self._new and self._chance.random() < 0.5:
                path.unlink()
                continue
            data = path.read_bytes()
            end = self._chance.randint(min(size, len(data)), len(data))
            garbage = self._chance.randint(min(size, end), end)
            path.write_bytes(data[:garbage] + bytes(end - garbage))
