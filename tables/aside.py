"""Keeps a few stores that must not be used any more next to their successor, for inspection."""

from __future__ import annotations

import shutil
from pathlib import Path

ROTTEN_KEPT = 2


def set_aside(path: Path, *, rotten: bool) -> Path:
    """Move the store at *path* out of the way and return where it is now.

    `.set-aside` is the last one that did not fit: of another version, or older than its changelog.
    `.rotten-1`, `.rotten-2` ... are the last that were damaged, the newest with the highest number.
    """
    if rotten:
        kept = rotten_stores(path)
        aside = path.with_name(f"{path.name}.rotten-{_number(kept[-1]) + 1 if kept else 1}")
        for old in kept[: max(0, len(kept) + 1 - ROTTEN_KEPT)]:
            shutil.rmtree(old, ignore_errors=True)
    else:
        aside = path.with_name(path.name + ".set-aside")
        shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


def scratch_of(path: Path) -> Path:
    """Return the scratch path of a check of the store at *path*; a killed check may leave it there."""
    return path.with_name(f"{path.name}.checking")


def rotten_stores(path: Path) -> list[Path]:
    """Return the rotten stores that were set aside for the one at *path*, the oldest first."""
    found = path.parent.glob(f"{path.name}.rotten-*")
    return sorted((each for each in found if each.name.rpartition("-")[2].isdigit()), key=_number)


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
