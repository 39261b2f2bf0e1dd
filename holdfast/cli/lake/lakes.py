"""The options by which commands name a lake and the topics in it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from holdfast.errors import ConfigError


def absolute(lake: str) -> str:
    """Return a lake's folder as an absolute path; addresses stay as they are.

    >>> absolute("s3a://lake"), absolute("/data/lake/")
    ('s3a://lake', '/data/lake')
    """
    return lake if "://" in lake else str(Path(lake).expanduser().absolute())


def names_of(topics: str) -> list[str]:
    """Return the names in `--topics`.

    >>> names_of("orders, payments,events.*,")
    ['orders', 'payments', 'events.*']
    """
    return [each.strip() for each in topics.split(",") if each.strip()]


def tables_in(lake: str) -> list[str]:
    """Return the topics that a lake on this machine has tables of."""
    return _found(lake, [each.parent for each in _folder(lake).glob("*/_delta_log")])


def folders_in(lake: str) -> list[str]:
    """Return the topics that a lake on this machine has folders of, also such as have lost their log."""
    found = (each for each in _folder(lake).glob("[!_.]*") if each.is_dir() or each.is_symlink())
    return _found(lake, [each for each in found if not each.is_dir() or any(each.iterdir())])


def _found(lake: str, folders: Iterable[Path]) -> list[str]:
    if not (names := sorted(each.name for each in folders)):
        raise ConfigError(
            f"there is no table in {_folder(lake)}: land a topic first (`holdfast pipeline land`)"
        )
    return names


def _folder(lake: str) -> Path:
    if "://" in lake and not lake.startswith("file://"):
        raise ConfigError(
            f"the tables of {lake} cannot be listed from here: name their topics, --topics TOPIC,..."
        )
    return Path(lake.removeprefix("file://")) / "bronze"
