"""How commands name a lake and the topics in it."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import ConfigError


def absolute(lake: str) -> str:
    """Return a lake's folder as an absolute path; addresses stay as they are.

    >>> absolute("s3a://lake"), absolute("/data/lake/")
    ('s3a://lake', '/data/lake')
    """
    return lake if "://" in lake else str(Path(lake).expanduser().absolute())


def names_of(topics: str) -> list[str]:
    """Return what `--topics` names.

    >>> names_of("orders, payments,events.*,")
    ['orders', 'payments', 'events.*']
    """
    return [each.strip() for each in topics.split(",") if each.strip()]


def tables_in(lake: str) -> list[str]:
    """Return the topics that a lake on this machine has tables of."""
    if "://" in lake and not lake.startswith("file://"):
        raise ConfigError(
            f"the tables of {lake} cannot be listed from here: name their topics, --topics TOPIC,..."
        )
    folder = Path(lake.removeprefix("file://")) / "bronze"
    found = sorted(each.parent.name for each in folder.glob("*/_delta_log"))
    if not found:
        raise ConfigError(f"there is no table in {folder}: land a topic first (`holdfast pipeline land`)")
    return found
