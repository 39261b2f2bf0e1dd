"""Vacuum: files that no version needs any more, and those that killed landings left."""

from __future__ import annotations

from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from holdfast.errors import ConfigError, LakeError
from holdfast.pipeline.bronze.lake import bronze_path, open_table

LEAST_HOURS = 1
"""A landing under way has written files that no commit names yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport:
    """The files of a table that were removed, or with *dry_run* would be."""

    topic: str
    table: str
    files: tuple[str, ...]
    dry_run: bool


def vacuum(topic: str, lake: str, *, hours: int, dry_run: bool = False) -> VacuumReport:
    """Vacuum the table of a topic; otherwise as `vacuum_table`."""
    return vacuum_table(bronze_path(lake, topic), topic, hours=hours, dry_run=dry_run)


def vacuum_table(path: str, name: str, *, hours: int, dry_run: bool = False) -> VacuumReport:
    """Remove files of the table at *path*, which people call *name*, that no commit of the last *hours*
    names; versions older than that cannot be read afterwards.

    Raises ConfigError for less than an hour, LakeError where there is no table or it cannot be vacuumed.
    """
    if hours < LEAST_HOURS:
        raise ConfigError(
            f"vacuum of files older than {hours} h: at least {LEAST_HOURS} h, since landings and folds under"
            " way have written files that no commit names yet"
        )
    try:
        found = open_table(path).vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
    except (DeltaError, OSError) as error:
        raise LakeError(f"{path} cannot be vacuumed: {error}") from error
    return VacuumReport(topic=name, table=path, files=tuple(sorted(found)), dry_run=dry_run)
