"""A table whose row type is one of three: `EVOLVING=more python -P -m tests.chaos.evolving worker`."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows


class Total(msgspec.Struct, frozen=True):
    count: int = 0


class More(msgspec.Struct, frozen=True):
    count: int = 0
    note: str = "-"


class Other(msgspec.Struct, frozen=True):
    count: str = ""


TYPES: dict[str, Any] = {"one": Total, "more": More, "other": Other}


def evolving(source: str, row: Any) -> Processor[Any, Any]:
    def fold(rows: Rows[Any], key: str, at_ms: int) -> None:
        before = rows.get(key) or row()
        rows[key] = msgspec.structs.replace(before, count=before.count + 1)

    return Processor(name="totals", source=source, decode=bytes.decode, fold=fold, row=row)


processors = (
    [evolving(os.environ["CHAOS_SOURCE"], TYPES[os.environ["EVOLVING"]])] if "EVOLVING" in os.environ else []
)

if __name__ == "__main__":
    create_app(processors).main()
