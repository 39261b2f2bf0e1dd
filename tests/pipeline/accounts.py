"""A processor that uses all a fold may use, and the logs it is tried on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
from hypothesis import strategies as st

from holdfast.core.engine.declared.processor import Emit, Headers, Processor
from holdfast.core.engine.state.rows import Rows


class Account(msgspec.Struct, frozen=True):
    """A row with a set in it, whose order in memory depends on the hash seed."""

    total: int = 0
    seen_ms: int = 0
    fired: int = 0
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Op:
    """A decoded record."""

    verb: str
    key: str
    amount: int
    tags: tuple[str, ...]


def decode(value: bytes | None, key: bytes | None, headers: Headers, offset: int) -> Op:
    if value is None:
        return Op("remove", (key or b"").decode(), offset, ())
    verb, name, amount = value.decode().split(" ")
    return Op(
        verb,
        name,
        int(amount),
        tuple((content or b"none").decode() for tag, content in headers if tag == "tag"),
    )


def fold(rows: Rows[Account], op: Op, at_ms: int) -> Iterator[Emit]:
    account = rows.get(op.key, Account())
    match op.verb:
        case "add" | "boom":
            rows[op.key] = Account(
                account.total + op.amount,
                at_ms,
                account.fired,
                account.tags | {*op.tags, f"t{op.amount % 7}"},
            )
            if op.verb == "boom":
                raise ValueError(f"boom {op.key} at {at_ms}")
            if op.amount > 50:
                yield Emit("large", key=op.key, value=b"%d" % op.amount)
        case "remove":
            del rows[op.key]
            rows.wake_at(op.key, None)
        case "wake":
            rows.wake_at(op.key, at_ms + op.amount)
        case "sum":
            rows[f"sum/{op.key}"] = Account(
                total=sum(row.total for _, row in rows.scan(op.key)), seen_ms=at_ms
            )
        case "emit":
            yield Emit("not a topic", key=op.key)
        case "stray":
            rows[op.key] = Account(account.total + op.amount, at_ms)
            yield Emit("undeclared", key=op.key)
        case _:
            raise ValueError(f"unknown verb {op.verb}")


def on_wake(rows: Rows[Account], key: str, at_ms: int) -> Iterator[Emit]:
    account = rows.get(key, Account())
    if account.fired == 3:
        raise ValueError(f"{key} fired too often")
    rows[key] = Account(account.total, at_ms, account.fired + 1, account.tags)
    if account.fired == 0:
        rows.wake_at(key, at_ms + 100)
    yield Emit("fired", key=key, value=b"%d" % at_ms)


def accounts(source: str = "accounts-source") -> Processor[Op, Account]:
    """Return the processor, folding topic *source*."""
    return Processor(
        name="accounts",
        source=source,
        decode=decode,
        fold=fold,
        on_wake=on_wake,
        row=Account,
        inputs=("value", "key", "headers", "offset"),
        emits=("large", "fired"),
    )


processors = [accounts()]


@dataclass(frozen=True, slots=True)
class Record:
    """A record as Kafka holds it."""

    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


Log = Mapping[int, list[Record]]

_keys = st.sampled_from(["a", "b", "ab", "b/1", "ключ"])
_values = st.one_of(
    st.builds(
        "{} {} {}".format,
        st.sampled_from(["add", "add", "add", "wake", "sum", "boom", "emit", "stray", "remove", "what"]),
        _keys,
        st.integers(0, 99),
    ).map(str.encode),
    st.sampled_from([None, b"", b"\xff\xfe", b"add a", b"add a x"]),
)
_headers = st.lists(
    st.tuples(st.sampled_from(["tag", "other"]), st.sampled_from([None, b"", b"x", b"y"])), max_size=2
).map(tuple)


@st.composite
def records(draw: st.DrawFn, limit: int = 60) -> list[Record]:
    """Draw one partition's log: offsets with gaps, times that mostly rise and sometimes fall back."""
    out: list[Record] = []
    offset, at_ms = draw(st.integers(0, 3)), 1_700_000_000_000
    for _ in range(draw(st.integers(0, limit))):
        at_ms = max(1, at_ms + draw(st.sampled_from([0, 0, 1, 30, 200, -50])))
        out.append(
            Record(
                offset, at_ms, draw(st.sampled_from([None, b"a", b"b", b""])), draw(_values), draw(_headers)
            )
        )
        offset += draw(st.sampled_from([1, 1, 1, 1, 4]))
    return out


def logs(partitions: int = 3, limit: int = 60) -> st.SearchStrategy[dict[int, list[Record]]]:
    """Draw a log of several partitions."""
    return st.fixed_dictionaries({partition: records(limit) for partition in range(partitions)})


def doubled(rows: Rows[Account], key: str, row: Account) -> None:
    """Migrate a row."""
    rows[key] = Account(row.total * 2, row.seen_ms, row.fired, row.tags)


def failing_sums(rows: Rows[Account], key: str, row: Account) -> None:
    """Migrate a row; some are dropped."""
    if key.startswith("sum/"):
        raise ValueError("no sums")
    rows[key] = row
