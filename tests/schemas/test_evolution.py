"""Any change of an Avro record's type is read exactly, or refused, as an oracle of a few lines says."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Avro
from holdfast.config import SchemaRegistrySettings
from holdfast.errors import DecodeError
from holdfast.schemas import registry
from holdfast.schemas.frames import header

KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, st.integers(-(2**63), 2**63 - 1)),
    "float": (float, st.floats(allow_nan=False)),
    "str": (str, st.text(max_size=5)),
    "int?": (int | None, st.none() | st.integers(-9, 9)),
    "str?": (str | None, st.none() | st.text(max_size=5)),
    "list": (list[int], st.lists(st.integers(-9, 9), max_size=3)),
}
NAMES = "abcd"
_numbers = itertools.count()


@st.composite
def fields(draw: st.DrawFn) -> dict[str, tuple[str, Any]]:
    """Give names with their kinds and their defaults; MISSING for none."""
    out = {}
    for name in draw(st.sets(st.sampled_from(NAMES), min_size=1)):
        kind = draw(st.sampled_from(sorted(KINDS)))
        out[name] = kind, draw(st.just(msgspec.NODEFAULT) | KINDS[kind][1])
    return out


def struct_of(name: str, declared: dict[str, tuple[str, Any]]) -> Any:
    made: list[Any] = []
    for field, (kind, default) in declared.items():
        if default is msgspec.NODEFAULT:
            made.append((field, KINDS[kind][0]))
        else:
            factory: Any = msgspec.field(
                default_factory=partial(list, default if isinstance(default, list) else ())
            )
            made.append((field, KINDS[kind][0], factory if isinstance(default, list) else default))
    return msgspec.defstruct(name, made, kw_only=True)


REFUSED = object()


def read(value: Any, wrote: str, kind: str) -> Any:
    """Return what a field's value is to a reader of *kind*, by the rules of the page."""
    if value is None:
        return None if kind.endswith("?") else REFUSED
    wrote, kind = wrote.removesuffix("?"), kind.removesuffix("?")
    if (wrote, kind) == ("int", "float"):
        return float(value)
    return value if wrote == kind else REFUSED


@given(wrote=fields(), reads=fields(), data=st.data())
def test_a_record_of_another_type_is_read_exactly_or_refused(
    wrote: dict[str, tuple[str, Any]], reads: dict[str, tuple[str, Any]], data: st.DataObject
) -> None:
    asked = registry.use(SchemaRegistrySettings(schema_registry_url="mock://evolution"))
    writer, reader = Avro(struct_of("Written", wrote)), Avro(struct_of("Read", reads))
    given = {name: data.draw(KINDS[kind][1]) for name, (kind, _) in wrote.items()}
    schema_id = asked.register(f"s{next(_numbers)}", writer.schema).schema_id
    record = header(schema_id) + writer.payload(writer.of(**given))
    wanted = {}
    for name, (kind, default) in reads.items():
        if name in wrote:
            wanted[name] = read(given[name], wrote[name][0], kind)
        else:
            wanted[name] = REFUSED if default is msgspec.NODEFAULT else default
    if any(each is REFUSED for each in wanted.values()):
        with pytest.raises(DecodeError):
            reader.decode(record)
    else:
        assert reader.decode(record) == reader.of(**wanted)
        assert reader.why_unreadable(writer.schema, asked) is None
