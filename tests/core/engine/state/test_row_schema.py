"""Row types that change: an accepted change reads each old row with the same content, and one that would not
is refused.
"""

from __future__ import annotations

import datetime as dt
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.engine.state.codec import RowCodec
from holdfast.core.engine.state.row_schema import RowSchema, schema_of, why_reread, why_unreadable
from holdfast.errors import HoldfastError
from tests.support.scale import scaled

ZONED = Annotated[dt.datetime, msgspec.Meta(tz=True)]
NOON = dt.datetime(2026, 11, 21, 12)
Values = st.SearchStrategy[Any]


class Colour(Enum):
    RED, BLUE = "red", "blue"


class Inner(msgspec.Struct, frozen=True):
    x: int = 0


TYPES: list[tuple[Any, Values]] = [
    (int, st.integers(-5, 5)),
    (Annotated[int, msgspec.Meta(ge=0)], st.integers(0, 5)),
    (Annotated[int, msgspec.Meta(ge=-9, lt=9)], st.integers(-9, 8)),
    (float, st.sampled_from([0.0, 1.5, 2.0])),
    (str, st.sampled_from(["", "red", "blue", "2020-01-01"])),
    (Annotated[str, msgspec.Meta(max_length=4)], st.sampled_from(["", "red", "blue"])),
    (bool, st.booleans()),
    (bytes, st.sampled_from([b"", b"red"])),
    (Literal["red", "blue"], st.sampled_from(["red", "blue"])),
    (Literal["red", "blue", "green"], st.sampled_from(["red", "green"])),
    (Literal[1, 2], st.sampled_from([1, 2])),
    (Colour, st.sampled_from(Colour)),
    (int | None, st.none() | st.integers(-5, 5)),
    (int | str, st.sampled_from([1, "red"])),
    (int | float, st.sampled_from([1, 1.5, 2.0])),
    (tuple[int, ...], st.sampled_from([(), (1, 2), (1, 2, 3)])),
    (tuple[int, int], st.just((1, 2))),
    (tuple[int | str, ...], st.sampled_from([(), (1, "a")])),
    (frozenset[int], st.sampled_from([frozenset(), frozenset({1, 2})])),
    (dt.datetime, st.sampled_from([NOON, NOON.replace(tzinfo=dt.UTC)])),
    (ZONED, st.just(NOON.replace(tzinfo=dt.UTC))),
    (Inner, st.builds(Inner, st.integers(0, 3))),
    (Inner | None, st.none() | st.builds(Inner, st.integers(0, 3))),
]
NAMES = ("a", "b", "c")


class Spec(NamedTuple):
    """A row type: (name, number of its type in TYPES, default or none) of each field, and options of the
    Struct.
    """

    fields: tuple[tuple[str, int, tuple[Any, ...]], ...]
    options: dict[str, Any]

    def struct(self) -> Any:
        fields = [(name, TYPES[number][0], *default) for name, number, default in self.fields]
        return msgspec.defstruct("Row", sorted(fields, key=len), frozen=True, **self.options)

    def rows(self) -> st.SearchStrategy[Any]:
        return st.builds(self.struct(), **{name: TYPES[number][1] for name, number, _ in self.fields})


OPTIONS = ("array_like", "omit_defaults", "forbid_unknown_fields", "tag")


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    options = draw(st.sets(st.sampled_from(OPTIONS), max_size=1))
    return Spec(tuple(draw(fields(name)) for name in names), dict.fromkeys(options, True))


@st.composite
def fields(draw: st.DrawFn, name: str) -> tuple[str, int, tuple[Any, ...]]:
    number = draw(st.integers(0, len(TYPES) - 1))
    return name, number, (draw(TYPES[number][1]),) if draw(st.booleans()) else ()


@st.composite
def changes(draw: st.DrawFn, spec: Spec) -> Spec:
    """Draw a change of a row type: a field more or less, another type or default, another order or
    form.
    """
    changed, options = list(spec.fields), dict(spec.options)
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(changed) - 1))
        free = sorted(set(NAMES) - {name for name, _, _ in changed})
        match draw(st.sampled_from(["add", "drop", "type", "default", "order", "option"])):
            case "add" if free:
                changed.append(draw(fields(free[0])))
            case "drop" if len(changed) > 1:
                del changed[at]
            case "type":
                changed[at] = draw(fields(changed[at][0]))
            case "default":
                name, number, _ = changed[at]
                changed[at] = (name, number, (draw(TYPES[number][1]),))
            case "order":
                changed = draw(st.permutations(changed))
            case "option":
                option = draw(st.sampled_from(OPTIONS))
                options = {} if option in options else {option: True}
    return Spec(tuple(changed), options)


def content(row: Any, names: set[str]) -> dict[str, Any]:
    return {name: msgspec.to_builtins(getattr(row, name)) for name in names & set(row.__struct_fields__)}


def written_down(schema: RowSchema) -> RowSchema:
    return msgspec.json.decode(msgspec.json.encode(schema), type=RowSchema)


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=scaled(400), deadline=None)
def test_an_accepted_change_reads_every_old_row_with_the_same_content(data: st.DataObject) -> None:
    spec = data.draw(specs())
    other = data.draw(changes(spec))
    old, new = spec.struct(), other.struct()
    if why_unreadable(written_down(schema_of(old)), schema_of(new)) is not None:
        return
    row = data.draw(spec.rows())
    read = RowCodec[Any](new).decode(RowCodec[Any](old).encode(row))
    kept = set(old.__struct_fields__) & set(new.__struct_fields__)
    assert content(read, kept) == content(row, kept)
    fresh = {each.name: each.default for each in msgspec.structs.fields(new) if each.name not in kept}
    assert {name: getattr(read, name) for name in fresh} == fresh


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=scaled(400), deadline=None)
def test_a_row_means_the_same_under_each_type_that_is_accepted_after_another(data: st.DataObject) -> None:
    spec = data.draw(specs())
    second = data.draw(changes(spec))
    third = data.draw(changes(second))
    one, two, three = (schema_of(each.struct()) for each in (spec, second, third))
    if why_unreadable(one, two) or why_unreadable(one, three) or why_unreadable(two, three):
        return
    if why_reread(one, two, three) is not None:
        return
    stored = RowCodec[Any](spec.struct()).encode(data.draw(spec.rows()))
    then, now = (RowCodec[Any](each.struct()).decode(stored) for each in (second, third))
    both = set(then.__struct_fields__) & set(now.__struct_fields__)
    assert content(now, both) == content(then, both)


@given(data=st.data())
@settings(max_examples=scaled(100), deadline=None)
def test_a_type_reads_its_own_rows_and_one_with_a_field_more_does(data: st.DataObject) -> None:
    spec = data.draw(specs())
    schema = written_down(schema_of(spec.struct()))
    assert why_unreadable(schema, schema_of(spec.struct())) is None
    ordered = tuple(sorted(spec.fields, key=lambda each: len(each[2])))
    grown = Spec((*ordered, ("new", 0, (7,))), spec.options).struct()
    if not spec.options.get("tag"):
        assert why_unreadable(schema, schema_of(grown)) is None
        read = RowCodec[Any](grown).decode(RowCodec[Any](spec.struct()).encode(data.draw(spec.rows())))
        assert read.new == 7


def struct(**fields: Any) -> Any:
    return msgspec.defstruct(
        "Row",
        [(name, *each) if isinstance(each, tuple) else (name, each) for name, each in fields.items()],
        frozen=True,
    )


class Tree(msgspec.Struct, frozen=True):
    children: tuple[Tree, ...] = ()


class Named(Tree, frozen=True):
    name: str = ""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (struct(a=int), struct(a=int, b=(str, "")), None),
        (struct(a=int, b=str), struct(a=int), None),
        (struct(a=int), struct(a=int | None), None),
        (struct(a=int | None), struct(a=int), "field a was none and is int"),
        (struct(a=int), struct(b=int), "field b is new and has no default"),
        (struct(a=int), struct(a=float), "field a was int and is float"),
        (struct(a=Inner), struct(a=struct(x=str)), "field x was int and is str"),
        (
            struct(a=Literal["x", "y"]),
            struct(a=Literal["x"]),
            "field a was one of ['x', 'y'] and may not be 'y'",
        ),
        (struct(a=int), struct(a=Annotated[int, msgspec.Meta(ge=0)]), "field a was without ge=0"),
        (int, str, "int and is str"),
        (Tree, Named, None),
        (tuple[int, int], tuple[int, ...], None),
        (tuple[int, int], tuple[int, int, int], "a tuple of 2 and is one of 3"),
        (
            struct(a=dt.datetime),
            struct(a=ZONED),
            "field a was a datetime with a zone or none and is one with a zone",
        ),
        (struct(a=ZONED), struct(a=dt.datetime), None),
        (struct(a=ZONED), struct(a=Annotated[dt.datetime, msgspec.Meta(tz=True, title="when")]), None),
        (
            dt.time,
            Annotated[dt.time, msgspec.Meta(tz=False)],
            "a time with a zone or none and is one without a zone",
        ),
    ],
)
def test_the_verdict_on_a_change(old: Any, new: Any, why: str | None) -> None:
    assert why_unreadable(written_down(schema_of(old)), schema_of(new)) == why


def test_a_default_that_changes_under_rows_that_lack_the_field_is_refused() -> None:
    one, two, three = (
        schema_of(struct(a=int)),
        schema_of(struct(a=int, b=(int, 1))),
        schema_of(struct(a=int, b=(int, 2))),
    )
    assert why_unreadable(one, three) is None
    assert (
        why_reread(one, two, three)
        == "the default of field b is another, and there are rows without the field"
    )
    assert why_reread(two, two, three) is None, "every row of that type has it"


def test_errors_are_of_the_family() -> None:
    with pytest.raises(HoldfastError):
        RowCodec[Any](struct(a=str)).decode(RowCodec[Any](struct(a=int)).encode(struct(a=int)(1)))
