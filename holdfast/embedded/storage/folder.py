"""A folder as Apache Kafka lays it out: a folder for each partition, Kafka's checkpoints, and a catalog of
the topics.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from holdfast.core.kafka.topic_partition import Place
from holdfast.embedded.configs.topic import TopicConfigs
from holdfast.embedded.logs.partition_log import PartitionLog
from holdfast.embedded.storage.catalog import Catalog, CatalogTopic, read_catalog, write_catalog
from holdfast.embedded.storage.checkpoints import OffsetCheckpoint
from holdfast.embedded.storage.disk import Disk, folder_error
from holdfast.embedded.storage.folder_lock import NAME as LOCK
from holdfast.embedded.storage.folder_lock import FolderLock
from holdfast.embedded.storage.segments.partition_files import PartitionFiles
from holdfast.errors import BrokerFolderError

META, PARTITION_META = "meta.properties", "partition.metadata"
STARTS, COMPACTED, SYNCED = (
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "recovery-point-offset-checkpoint",
)


def kafka_uuid(data: bytes) -> str:
    """Return an id as Kafka writes it in files."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class FolderStorage:
    """Keeps a cluster in *path*, from `open` to `close`. With *fsync*, answered writes outlive a power
    cut.
    """

    def __init__(
        self,
        path: Path,
        *,
        fsync: bool,
        nodes: int,
        now_ms: Callable[[], int],
        disk: Disk | None = None,
    ) -> None:
        self.path = path
        self.disk = disk or Disk(fsync=fsync)
        self._lock = FolderLock(path)
        self._nodes, self._now_ms = nodes, now_ms
        self._catalog = Catalog(nodes=nodes)

    # -- opening and closing

    def open(self, on_failure: Callable[[BrokerFolderError], None]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise folder_error("make", self.path, error) from error
        self._lock.take()
        try:
            self._open()
        except BaseException:
            self._let_go()
            raise
        self.disk.on_failure = on_failure

    def _open(self) -> None:
        found = read_catalog(self.path, self._nodes)
        if found is None:
            self._refuse_strangers()
        catalog = found or self._catalog
        self._write(msgspec.structs.replace(catalog, starts=catalog.starts + 1))
        self.starts = OffsetCheckpoint(self.disk, self.path / STARTS)
        self.compacted = OffsetCheckpoint(self.disk, self.path / COMPACTED)
        self.synced = OffsetCheckpoint(self.disk, self.path / SYNCED)
        self._clear_away()

    def _refuse_strangers(self) -> None:
        others = [each.name for each in self.path.iterdir() if each.name != LOCK and each.suffix != ".tmp"]
        if others:
            raise BrokerFolderError(
                f"{self.path} holds {min(others)}, and nothing of an embedded Kafka: take an empty folder"
            )

    def cluster_id(self, made: str) -> str:
        path = self.path / META
        try:
            lines = path.read_text("utf-8").splitlines()
        except FileNotFoundError:
            lines = ["version=1", f"cluster.id={made}", "node.id=1"]
            self.disk.replace(path, "\n".join([*lines, ""]).encode())
        except (OSError, UnicodeDecodeError) as error:
            raise BrokerFolderError(f"{path} cannot be read: {error}") from error
        return dict(each.split("=", 1) for each in lines if "=" in each).get("cluster.id", made)

    def close(self, logs: dict[Place, PartitionLog]) -> None:
        try:
            if self.disk.failure is None:
                for log in logs.values():
                    log.complete()
                self.disk.flush()  # before it is said that all of it is whole
                self.synced.update({place: log.end_offset for place, log in logs.items()})
                self.disk.flush()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self.disk.close()
        self._lock.release()

    @property
    def starts_before(self) -> int:
        return self._catalog.starts - 1

    # -- topics

    def topics(self) -> list[CatalogTopic]:
        return self._catalog.topics

    def keep_topics(self, topics: Iterable[CatalogTopic]) -> None:
        after = list(topics)
        there = {each.name for each in after}
        gone = [each for each in self._catalog.topics if each.name not in there]
        leaving = [f"{each.name}-{index}" for each in gone for index in range(len(each.replicas))]
        self._write(msgspec.structs.replace(self._catalog, topics=after, leaving=leaving))
        self._clear_away()

    def _clear_away(self) -> None:
        """Remove the remains of deleted topics; after a crash, the next start does it."""
        for each in self._catalog.leaving:
            self.disk.remove_folder(self.path / each)
        there = {each.name for each in self._catalog.topics}
        for offsets in (self.starts, self.compacted, self.synced):
            offsets.keep(there)

    def log(self, place: Place, topic_id: bytes, configs: TopicConfigs) -> PartitionLog:
        folder = self.path / f"{place[0]}-{place[1]}"
        files = PartitionFiles(self.disk, folder, place, configs, self, self._now_ms())
        self._check_id(folder / PARTITION_META, f"version: 0\ntopic_id: {kafka_uuid(topic_id)}")
        return PartitionLog(files)

    def _check_id(self, path: Path, told: str) -> None:
        try:
            found = path.read_text("utf-8") if path.exists() else None
        except (OSError, UnicodeDecodeError) as error:
            raise BrokerFolderError(f"{path} cannot be read: {error}") from error
        if found is None:
            self.disk.replace(path, told.encode())
        elif found.split() != told.split():
            raise BrokerFolderError(
                f"{path.parent} is of another topic of that name ({' '.join(found.split())}): move it away,"
                " or restore the folder"
            )

    # -- producer ids

    @property
    def producer_ids(self) -> int:
        return self._catalog.producer_ids

    def keep_producer_ids(self, below: int) -> None:
        if below > self._catalog.producer_ids:
            self._write(msgspec.structs.replace(self._catalog, producer_ids=below))

    def _write(self, catalog: Catalog) -> None:
        write_catalog(self.disk, self.path, catalog)
        self._catalog = catalog

    # -- syncing

    def room(self) -> tuple[int, int]:
        return self.disk.space(self.path)

    def settle(self) -> None:
        self.disk.sync()

    @property
    def syncs(self) -> Disk | None:
        return self.disk if self.disk.fsync else None
