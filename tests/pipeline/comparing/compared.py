"""A second version of the accounts, which counts otherwise, has another type of row, and reads less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.state.rows import Rows
from tests.pipeline.accounts import Op, accounts


class Summed(msgspec.Struct, frozen=True):
    """A row of the second version."""

    total: int = 0
    seen_ms: int = 0
    fired: int = 0
    tags: frozenset[str] = frozenset()


def decode(value: bytes | None, key: bytes | None) -> Op:
    if value is None:
        return Op("remove", (key or b"").decode(), 0, ())
    verb, name, amount = value.decode().split(" ")
    return Op(verb, name, int(amount), ())


def fold(rows: Rows[Summed], op: Op, at_ms: int) -> Iterator[Emit]:
    """Count amounts above 50 once more, forget nothing but 'a', and know of no tags of headers."""
    row = rows.get(op.key, Summed())
    if op.verb == "add":
        more = op.amount if op.amount > 50 else 0
        rows[op.key] = Summed(
            row.total + op.amount + more, at_ms, row.fired, row.tags | {f"t{op.amount % 7}"}
        )
    elif op.verb == "remove" and op.key == "a":
        del rows[op.key]
    return iter(())


def second(source: str = "accounts-source") -> Processor[Op, Summed]:
    """Return the second version, folding topic *source*."""
    return Processor(
        name="accounts",
        version=2,
        source=source,
        decode=decode,
        fold=fold,
        row=Summed,
        inputs=("value", "key"),
    )


processors = [second("t"), replace(accounts("t"), name="same", version=3)]
