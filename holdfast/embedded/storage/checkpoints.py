"""Kafka's checkpoint files: offsets of partitions, or the leader epochs of one partition, as text."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from pathlib import Path

from holdfast.core.kafka.topic_partition import Place
from holdfast.embedded.storage.disk import Disk
from holdfast.errors import BrokerFolderError

VERSION = "0"
_EPOCH_FIELDS, _OFFSET_FIELDS = 2, 3
_NUMBER = re.compile(r"-?[0-9]+")


def checkpoint_text(entries: Iterable[tuple[object, ...]]) -> bytes:
    """Return the bytes of a checkpoint: its version, how many entries there are, and these."""
    lines = [" ".join(map(str, each)) for each in entries]
    return "\n".join([VERSION, str(len(lines)), *lines, ""]).encode()


def checkpoint_entries(path: Path, fields: int) -> list[list[str]]:
    """Return the entries of a checkpoint file, none where there is no file or an empty one, as Kafka makes it
    before there is anything to write; BrokerFolderError for an invalid file.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise BrokerFolderError(f"{path} cannot be read: {error}") from error
    entries = [each.split(" ") for each in lines[2:]]
    sound = not lines or lines[:2] == [VERSION, str(len(entries))]
    if not (
        sound and all(len(each) == fields and all(map(_NUMBER.fullmatch, each[-2:])) for each in entries)
    ):
        raise BrokerFolderError(
            f"{path} is no checkpoint of Kafka's; if it was damaged, remove it: all but where logs start is"
            " worked out again from the segments"
        )
    return entries


def read_epochs(path: Path) -> list[tuple[int, int]]:
    """Return (epoch, first offset) of each leader epoch in a ``leader-epoch-checkpoint``."""
    return [(int(epoch), int(first)) for epoch, first in checkpoint_entries(path, _EPOCH_FIELDS)]


class OffsetCheckpoint:
    """A file with an offset for each partition that has one."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk, self._path = disk, path
        self._offsets: dict[Place, int] = {
            (topic, int(index)): int(offset)
            for topic, index, offset in checkpoint_entries(path, _OFFSET_FIELDS)
        }

    def get(self, place: Place) -> int:
        """Return the offset of a partition, 0 where there is none."""
        return self._offsets.get(place, 0)

    def set(self, place: Place, offset: int) -> None:
        """Write an offset, if it is another one."""
        if self.get(place) != offset:
            self._offsets[place] = offset
            self.write()

    def update(self, offsets: dict[Place, int]) -> None:
        """Have these be all offsets."""
        self._offsets = {place: offset for place, offset in offsets.items() if offset}
        self.write()

    def keep(self, topics: Container[str]) -> None:
        """Forget the partitions of topics that are not among *topics*."""
        left = {place: offset for place, offset in self._offsets.items() if place[0] in topics}
        if len(left) < len(self._offsets):
            self.update(left)

    def write(self) -> None:
        entries = [(*place, offset) for place, offset in sorted(self._offsets.items())]
        self._disk.replace(self._path, checkpoint_text(entries))
