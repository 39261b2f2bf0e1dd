"""Histories of an outbox's destination partitions: right ones, with leader changes, and ones with a
planted fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from holdfast.core.engine.declared.processor import Headers
from holdfast.core.engine.fold.folding import Refused
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.sequences import advance
from holdfast.core.producers.audit import AuditRow, Rules, decode, fold
from holdfast.core.producers.audit_verdict import PartitionAudit, conclude
from holdfast.core.producers.stamps import Stamp, stamp_headers
from holdfast.errors import DecodeError
from tests.models.leading import empty_rows

OUTBOX = "shop"


@dataclass(frozen=True, slots=True)
class Published:
    """One record: its offset, its key, its stamp, and its row's number among the rows of its key."""

    offset: int
    key: bytes | None
    stamp: Stamp | None
    number: int | None = None

    @property
    def headers(self) -> Headers:
        stamped = () if self.stamp is None else stamp_headers(self.stamp)
        return stamped if self.number is None else (("n", b"%d" % self.number), *stamped)


History = list[Published]


@st.composite
def histories(draw: st.DrawFn, *, begins: int = 0, least: int = 0, most: int = 40) -> History:
    """Draw the records that harvesters publish to one partition: two shards, each led by one leader after the
    other, control records between.
    """
    out: History = []
    offset = draw(st.integers(0, 2))
    last = [advance(begins, -1), -1]
    epochs = [1, 1]
    numbers: dict[bytes, int] = {}
    for _ in range(draw(st.integers(least, most))):
        shard = draw(st.sampled_from([0, 0, 0, 1]))
        epochs[shard] += draw(st.sampled_from([0, 0, 0, 1, 3]))
        key = draw(st.sampled_from([b"a", b"b", b"c", b"\xff", None])) if shard == 0 else b"d"
        last[shard] = advance(last[shard], 1)
        if key is not None:
            numbers[key] = numbers.get(key, -1) + draw(st.sampled_from([1, 1, 10]))
        number = numbers.get(key, 0) if key is not None else 0
        out.append(Published(offset, key, Stamp(f"{OUTBOX}-{shard}", epochs[shard], last[shard]), number))
        offset += draw(st.sampled_from([1, 1, 1, 2, 5]))
        if draw(st.integers(0, 9)) == 0:  # another producer's record
            out.append(Published(offset, b"a", None))
            offset += 1
    return out


def renumbered(records: Sequence[Published]) -> History:
    """Return *records* at offsets of their own, one after the other."""
    return [replace(each, offset=offset) for offset, each in enumerate(records)]


def audited(
    history: Sequence[Published],
    rules: Rules | None = None,
    *,
    first_offset: int = 0,
    expected: Mapping[str, int] | None = None,
) -> PartitionAudit:
    """Return the audit's expected findings for *history*, computed without any engine."""
    rules = rules or Rules(outbox=OUTBOX)
    rows: Rows[AuditRow] = empty_rows(AuditRow)
    refused = []
    for each in history:
        try:
            fold(
                rows,
                decode(each.key, each.headers, each.offset, b"v", 0, rules=rules),
                1_000 + each.offset,
                rules=rules,
            )
        except DecodeError as error:
            refused.append(
                Refused(offset=each.offset, stage="decode", error="DecodeError", reason=str(error))
            )
    return conclude(
        "t",
        0,
        dict(rows.scan()),
        refused,
        rules=rules,
        first_offset=first_offset,
        records=len(history),
        expected=expected,
    )


def told(found: PartitionAudit) -> list[tuple[str, int, int, int]]:
    """Return findings as (kind, offset, first number, last number)."""
    return [(str(each.kind), each.offset, each.first, each.last) for each in found.findings]


def orders(count: int, *, keys: int = 3, epoch_every: int = 7) -> Iterator[Published]:
    """Yield a plain history: keys in turn, a new leader every so often."""
    for at in range(count):
        stamp = Stamp(f"{OUTBOX}-0", 1 + at // epoch_every, at)
        yield Published(at, b"key-%d" % (at % keys), stamp, at)
