"""The data of the cluster as a whole, in ``embedded-topics.json``: its topics, and the taken producer ids."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from holdfast.embedded.configs.topic import troubles
from holdfast.embedded.storage.disk import Disk, folder_error
from holdfast.errors import BrokerFolderError

NAME = "embedded-topics.json"
VERSION = 1


_Brokers: TypeAlias = Annotated[list[int], msgspec.Meta(min_length=1)]


class CatalogTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic: *topic_id* in hexadecimal, *replicas* the brokers of each partition, *configs* its own
    settings.
    """

    name: str
    topic_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    replicas: Annotated[list[_Brokers], msgspec.Meta(min_length=1)]
    configs: dict[str, str]

    def __post_init__(self) -> None:
        for trouble in troubles(self.configs):
            raise ValueError(f"topic {self.name}: {trouble}")


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. *starts* is how often a broker has opened the folder; *producer_ids* is the first that no
    producer was promised; *leaving* are folders of partitions that were deleted.
    """

    version: int = VERSION
    nodes: int = 1
    starts: int = 0
    producer_ids: int = 0
    topics: list[CatalogTopic] = []
    leaving: list[str] = []


_decode = msgspec.json.Decoder(Catalog).decode


def read_catalog(folder: Path, nodes: int) -> Catalog | None:
    """Return the catalog in *folder*, None where it has no such file; BrokerFolderError for an unreadable
    one, or one of a cluster of another size than *nodes*.
    """
    path = folder / NAME
    try:
        found = _decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise folder_error("read", path, error) from error
    except msgspec.DecodeError as error:
        raise BrokerFolderError(
            f"{path} cannot be read ({error}); restore it, or take another folder"
        ) from error
    if found.version != VERSION:
        raise BrokerFolderError(
            f"{path} has version {found.version}, this holdfast reads {VERSION}: open it with the release"
            " that wrote it"
        )
    if found.nodes != nodes:
        raise BrokerFolderError(
            f"{folder} is that of {found.nodes} brokers, not of {nodes}: start {found.nodes}, or take another"
            " folder"
        )
    for each in found.topics:
        if strangers := {broker for brokers in each.replicas for broker in brokers} - {*range(1, nodes + 1)}:
            raise BrokerFolderError(
                f"{path} cannot be read (topic {each.name} lies on broker {min(strangers)}, and there are"
                f" {nodes}); restore it, or take another folder"
            )
    return found


def write_catalog(disk: Disk, folder: Path, catalog: Catalog) -> None:
    """Write it; after a crash either this one is there or the one before."""
    disk.replace(folder / NAME, msgspec.json.format(msgspec.json.encode(catalog), indent=1))
    disk.sync()
