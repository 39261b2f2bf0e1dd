"""An application of one table in a version of one's choice, `VERSIONED=2 python -P -m tests.agents.versioned
worker`. It hardly folds a version after the first while the file `VERSIONED_HELD` is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.state.rows import Rows


class Counted(msgspec.Struct, frozen=True):
    """The number of records of a key, as version 1 keeps it."""

    count: int = 0


class Weighed(msgspec.Struct, frozen=True):
    """The number of records of a key, and their bytes, as version 2 keeps it."""

    count: int
    size: int


HELD_S = 0.05


def versioned(
    app: str, version: int = 1, *, held: Path | None = None, emits: bool = True
) -> Processor[Any, Any]:
    """Return the processor, of records KEY TEXT, whose fold takes `HELD_S` for each while *held* is there."""

    def fold(rows: Rows[Any], event: tuple[str, str], at_ms: int) -> Iterator[Emit]:
        if held is not None and held.exists():
            time.sleep(HELD_S)
        key, text = event
        before = rows.get(key)
        count = (before.count if before else 0) + 1
        if version == 1:
            rows[key] = Counted(count)
        else:
            rows[key] = Weighed(count, (before.size if before else 0) + len(text))
        if emits:
            yield Emit(f"{app}-out", key=key, value=b"v%d %d" % (version, count))

    return Processor(
        name="totals",
        source=f"{app}-in",
        decode=decode,
        fold=fold,
        row=Counted if version == 1 else Weighed,
        version=version,
        route=by_key,
        emits=(f"{app}-out",) if emits else (),
    )


def decode(value: bytes) -> tuple[str, str]:
    key, _, text = value.decode().partition(" ")
    return key, text


def declared() -> Processor[Any, Any]:
    """Return the processor that the environment asks for."""
    version = int(os.environ.get("VERSIONED", "1"))
    return versioned(
        os.environ["HOLDFAST_APP"],
        version,
        held=Path(os.environ["VERSIONED_HELD"]) if version > 1 else None,
        emits="VERSIONED_SILENT" not in os.environ,
    )


if "VERSIONED" in os.environ or __name__ == "__main__":
    app = create_app([declared()])

if __name__ == "__main__":
    app.main()
