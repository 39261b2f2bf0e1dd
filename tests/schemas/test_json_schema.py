"""JSON Schema: the schemas of types, and the refused ones."""

from __future__ import annotations

import enum
import json
from typing import Any

import msgspec
import pytest

from holdfast import JsonSchema, Source, Stream
from holdfast.core.untrusted.nesting import LIMIT_DEPTH
from holdfast.errors import ConfigError, DecodeError, FoldError
from holdfast.schemas.frames import header
from holdfast.schemas.registry import SchemaRegistry, SchemaText
from tests.schemas.shop import FULL, Big, Order, Total
from tests.support.limits import at_most


def registered(memory: SchemaRegistry, schema: Any, subject: str = "orders-value") -> int:
    return memory.register(subject, SchemaText("JSON", json.dumps(schema))).schema_id


@pytest.mark.long
def test_a_value_comes_back_and_equal_values_have_equal_bytes(memory: SchemaRegistry) -> None:
    stream: Any = Stream("orders", JsonSchema(Order))
    memory.register("orders-value", stream.serde.schema)
    assert Source("orders", JsonSchema(Order)).serde.decode(stream.serde.encode(FULL)) == FULL
    one, other = Order("a", 1, notes={"a": "1", "b": "2"}), Order("a", 1, notes={"b": "2", "a": "1"})
    assert stream.serde.encode(one) == stream.serde.encode(other)


def test_a_record_must_be_valid_by_the_schema_it_was_written_with(memory: SchemaRegistry) -> None:
    schema = {"type": "object", "properties": {"cents": {"type": "integer", "maximum": 100}}}
    value = header(registered(memory, schema)) + b'{"customer": "ada", "cents": 101}'
    with pytest.raises(
        DecodeError, match=r"schema 1 of subject .*: \$\.cents: 101 is greater than the maximum of 100"
    ):
        JsonSchema(Order).for_topic("orders", "value").decode(value)
    assert JsonSchema(Order, validate=False).decode(value) == Order("ada", 101)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b'{"customer": 1, "cents": 1}', "Expected `str`"),
        (b"[" * 100_000, "recursion|depth"),
    ],
)
def test_bytes_that_are_no_such_value_are_refused(memory: SchemaRegistry, payload: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        JsonSchema(Order).decode(header(registered(memory, {})) + payload)


def test_references_are_read_from_the_registry_and_from_nowhere_else(memory: SchemaRegistry) -> None:
    registered(memory, {"type": "string", "maxLength": 3}, "name")
    schema = {"type": "object", "properties": {"customer": {"$ref": "name.json"}}}
    known = SchemaText("JSON", json.dumps(schema), (("name.json", "name", 1),))
    at = memory.register("orders-value", known).schema_id
    assert JsonSchema(Order).decode(header(at) + b'{"customer": "ada", "cents": 1}') == Order("ada", 1)
    with pytest.raises(DecodeError, match=r"\$\.customer: \"adam\" is longer than 3 characters"):
        JsonSchema(Order).decode(header(at) + b'{"customer": "adam", "cents": 1}')
    elsewhere = {"type": "object", "properties": {"customer": {"$ref": "http://127.0.0.1:1/name.json"}}}
    with pytest.raises(DecodeError, match=r"does not fit: .* nothing is fetched for a schema"):
        JsonSchema(Order).decode(header(registered(memory, elsewhere)) + b'{"customer": "ada", "cents": 1}')


def test_a_written_value_is_valid_by_a_given_schema(memory: SchemaRegistry) -> None:
    schema = {"type": "object", "properties": {"customer": {"maxLength": 3}}}
    stream: Any = Stream("big", JsonSchema(Big, schema))
    memory.register("big-value", stream.serde.schema)
    assert stream.emit("k", Big("ada", Total())).value is not None
    wrong: list[Any] = [Big("adam", Total()), Big("ada", 7), Total(), None]  # type: ignore[arg-type]
    for each in wrong:
        with pytest.raises(FoldError, match=r"cannot be written as JsonSchema\(Big\)"):
            stream.emit("k", each)


def test_an_invalid_schema_or_type_is_refused_at_declaration() -> None:
    for schema in ("{", "[]", {"type": "strnig"}):
        with pytest.raises(ConfigError):
            JsonSchema(Order, schema)
    with pytest.raises(ConfigError, match="JsonSchema"):
        JsonSchema(dict[msgspec.Raw, complex])
    with pytest.raises(ConfigError, match="Out of range float values are not JSON"):
        JsonSchema(msgspec.defstruct("Row", [("x", float, float("nan"))]))
    with pytest.raises(ConfigError, match="Integer values"):
        JsonSchema(enum.IntEnum("Far", {"AWAY": 1 << 70}))


def test_memory_that_runs_out_blames_no_record(
    memory: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    serde: Any = Stream("orders", JsonSchema(Order)).serde
    memory.register("orders-value", serde.schema)

    def exhausted(value: Any) -> Any:
        raise MemoryError

    value = serde.encode(FULL)
    monkeypatch.setattr(serde, "_reads", {})
    monkeypatch.setattr(serde, "reader", lambda schema, asked: exhausted)
    with pytest.raises(MemoryError):
        serde.decode(value)
    monkeypatch.setattr(serde, "_encode", exhausted)
    with pytest.raises(MemoryError):
        serde.encode(FULL)


# -- what costs no more than it is long


def nested(depth: int) -> Any:
    value: Any = {"a": 1}
    for _ in range(depth):
        value = {"a": 1, "next": value}
    return value


_NEXT = {"properties": {"next": {"$ref": "#"}}}
_NEVER = {"required": ["never"]}
MERSENNE = (1 << 61) - 1
"""Python's hash of a whole number is its remainder by this."""
HOSTILE: dict[str, tuple[Any, Any, str | None]] = {
    "different objects": ({"uniqueItems": True}, [{"a": each} for each in range(40_000)], None),
    "equal objects": ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], "non-unique"),
    "different lists": ({"uniqueItems": True}, [[each, [each]] for each in range(40_000)], None),
    "numbers of 64 bits": ({"uniqueItems": True}, [2**63 + each for each in range(20_000)], None),
    "large numbers": ({"uniqueItems": True}, [10**30 + each for each in range(20_000)], None),
    "numbers of one hash": ({"uniqueItems": True}, [each * MERSENNE for each in range(20_000)], None),
    "equal large numbers": ({"uniqueItems": True}, [10**30, 1, 10**30], "non-unique"),
    "equal large and real": ({"uniqueItems": True}, [2.0**70, 2**70], "non-unique"),
    "nested lists of one": (
        {"items": {"$ref": "#"}, "uniqueItems": True},
        json.loads("[" * 400 + "]" * 400),
        None,
    ),
    "lists that nest deep": (
        {"uniqueItems": True},
        [json.loads("[" * 260 + str(each) + "]" * 260) for each in range(1_500)],
        "items must be unique",
    ),
    "numbers of 64 bits at each depth": (
        {"items": {"$ref": "#"}, "uniqueItems": True},
        json.loads("[" * 400 + ",".join(str(2**64 + each) for each in range(20_000)) + "]" * 400),
        "items must be unique",
    ),
    "few numbers of 64 bits at each depth": (
        {"items": {"$ref": "#"}, "uniqueItems": True},
        json.loads("[" * 400 + ",".join(str(2**64 + each) for each in range(100)) + "]" * 400),
        None,
    ),
    "the last of many properties": (
        {"properties": {f"p{each}": {"type": "integer"} for each in range(4_000)}},
        {f"p{each}": 1 for each in range(3_999)} | {"p3999": "x"},
        r"\$\.p3999: .x. is not of type",
    ),
    "the last of many items": (
        {"prefixItems": [{"type": "integer"}] * 4_000},
        [1] * 3_999 + ["x"],
        r"\$\[3999\]: .x. is not of type",
    ),
    "a wrong part far within a long value": (
        {"items": {"$ref": "#"}, "type": ["array", "integer"]},
        json.loads("[" * 300 + "1," * 200_000 + '"x"' + "]" * 300),
        "is not valid",
    ),
    "repeated repetition": ({"pattern": "^(a+)+$"}, "a" * 60_000 + "!", "does not match"),
    "look-around": ({"pattern": "^(?=(a|a)+$)(a|aa)+b$"}, "a" * 60 + "!", "does not match"),
    "names of properties": (
        {"patternProperties": {"^(a|a)*$": {}}, "additionalProperties": False},
        {"a" * 60_000 + "!": 1},
        "additionalProperties",
    ),
    "references both ways": ({"anyOf": [{**_NEXT, **_NEVER}, {**_NEXT, **_NEVER}]}, nested(150), "anyOf"),
    "just one of them": (
        {"oneOf": [{"allOf": [_NEXT, _NEVER]}, {"allOf": [_NEXT, _NEVER]}]},
        nested(150),
        "oneOf",
    ),
    "a condition": ({"if": {"not": _NEXT}, "then": _NEXT, "else": _NEXT}, nested(150), None),
    "all of them": ({"allOf": [_NEXT, _NEXT, {"type": "object"}]}, nested(150), None),
    "a schema that is itself": ({"$ref": "#"}, 1, None),
    "what is left of many": (
        {"unevaluatedProperties": False, "allOf": [{"patternProperties": {"^a": {}}}]},
        {f"a{each}": each for each in range(40_000)},
        None,
    ),
    "what is left of items": (
        {"unevaluatedItems": False, "allOf": [{"contains": {"type": "integer"}}]},
        [*range(40_000)],
        None,
    ),
    "a choice of many": (
        {"items": {"enum": [{"a": each} for each in range(2_000)]}},
        [{"a": each % 2_000} for each in range(20_000)],
        None,
    ),
    "a wrong item of many": ({"items": {"type": "string"}}, [1] * 100_000, r"\$\[0\]: 1 is not of type"),
    "multiples": ({"multipleOf": 7}, 10**4_000, "multiple"),
    "real multiples": ({"multipleOf": 1e-300}, 1e308, None),
}


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE)
def test_a_valid_record_takes_no_longer_than_it_is_long_whatever_the_schema_asks(
    memory: SchemaRegistry, name: str
) -> None:
    schema, value, why = HOSTILE[name]
    serde = JsonSchema(Any)
    record = header(registered(memory, schema)) + msgspec.json.encode(value)
    with at_most(2.0, name):
        if why is None:
            assert serde.decode(record) == value
        else:
            with pytest.raises(DecodeError, match=why):
                serde.decode(record)


def test_what_nests_too_deep_is_refused_and_brackets_in_text_do_not_count(memory: SchemaRegistry) -> None:
    serde: Any = JsonSchema(Any)
    begin = header(registered(memory, {}))
    deep = b"[" * LIMIT_DEPTH + b"]" * LIMIT_DEPTH
    assert serde.decode(begin + deep)
    with pytest.raises(DecodeError, match=f"nests more than {LIMIT_DEPTH} deep"):
        serde.decode(begin + b"[" + deep + b"]")
    text = b'["' + b'[\\"{' * LIMIT_DEPTH + b'"]'
    assert serde.decode(begin + text) == ['["{' * LIMIT_DEPTH]


def test_expressions_with_look_around_and_references_are_read(memory: SchemaRegistry) -> None:
    schema = {"items": {"pattern": r"^(?!admin)(['-]?)\w+\1$"}}
    serde: Any = JsonSchema(Any)
    begin = header(registered(memory, schema))
    assert serde.decode(begin + b'["ada", "\'bo\'", "-cy-"]') == ["ada", "'bo'", "-cy-"]
    for wrong in (b'["admin"]', b'["-cy\'"]'):
        with pytest.raises(DecodeError, match=r"\$\[0\]: .* does not match"):
            serde.decode(begin + wrong)


def test_an_invalid_expression_is_refused_with_the_reason(memory: SchemaRegistry) -> None:
    with pytest.raises(ConfigError, match=r'"\(a" is not a "regex"'):
        JsonSchema(Any, {"pattern": "(a"})
    with pytest.raises(DecodeError, match=r'does not fit: .*"\(a" is not a "regex"'):
        JsonSchema(Any).decode(header(registered(memory, {"pattern": "(a"})) + b'"a"')


def meeting(depth: int, *, into: bool) -> Any:
    """Return a schema of which each part refers to the next one twice, about the same value or a part of
    it.
    """
    parts: dict[str, Any] = {str(depth): {"type": "string"}}
    for number in range(depth):
        following: Any = {"$ref": f"#/$defs/{number + 1}"}
        parts[str(number)] = {"anyOf": [{"properties": {"next": following}} if into else following] * 2}
    return {"$defs": parts, "$ref": "#/$defs/0"}


@pytest.mark.parametrize("into", [False, True])
def test_references_that_meet_again_and_again_are_refused_by_their_schema(
    memory: SchemaRegistry, into: bool
) -> None:
    """Each way would be gone: a schema of sixty lines would take longer than anybody lives."""
    assert JsonSchema(Any, meeting(5, into=into)) is not None
    for number, schema in enumerate(
        (meeting(60, into=into), {"items": meeting(60, into=into)["$defs"]["0"], **meeting(60, into=into)})
    ):
        with pytest.raises(ConfigError, match="come to the same part in more than 1000 ways"):
            JsonSchema(Any, schema)
        at = header(registered(memory, schema, f"s{number}"))
        with pytest.raises(DecodeError, match=r"does not fit: .* more than 1000 ways"):
            JsonSchema(Any).decode(at + b"1")
        unchecked: Any = JsonSchema(Any, validate=False)
        assert unchecked.decode(at + b"1") == 1


DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$schema": DRAFT_7, "format": "date"}, "no date"),
        ({"$schema": DRAFT_7, "contentMediaType": "application/json", "contentEncoding": "base64"}, "{"),
        ({"$schema": "http://example.com/ours#", "type": "string"}, "of a dialect of one's own"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3, "exclusiveMaximum": True}, 2),
        (True, {"a": 1}),
    ],
)
def test_a_keyword_that_is_no_rule_of_a_dialect_refuses_nothing(
    memory: SchemaRegistry, schema: Any, value: Any
) -> None:
    record = header(registered(memory, schema)) + msgspec.json.encode(value)
    assert JsonSchema(Any).decode(record) == value


def test_a_dialect_that_is_too_old_is_refused_by_its_name(memory: SchemaRegistry) -> None:
    schema = {"$schema": "http://json-schema.org/draft-03/schema#", "type": "string"}
    with pytest.raises(DecodeError, match="it is of draft 3; write it in draft 4 or a later"):
        JsonSchema(Any).decode(header(registered(memory, schema)) + b'"a"')


def test_a_reason_says_where_and_by_which_rule(memory: SchemaRegistry) -> None:
    schema = {
        "$defs": {"line": {"properties": {"a/b": {"enum": ["x"]}}, "additionalProperties": False}},
        "properties": {"lines": {"prefixItems": [{"type": "null"}], "items": {"$ref": "#/$defs/line"}}},
        "allOf": [{"properties": {"n": {"anyOf": [{"maximum": 1}, {"minimum": 5}]}}}],
    }
    serde: Any = JsonSchema(Any)
    begin = header(registered(memory, schema))
    for value, why in (
        (b'{"lines": [null, {"a/b": "y"}]}', r'\$\.lines\[1\]\.a/b: "y" is not one of'),
        (
            b'{"lines": [null, {"c": 1}]}',
            r"\$\.lines\[1\]: \{'c': 1\} is not valid by .*additionalProperties",
        ),
        (b'{"lines": [0]}', r"\$\.lines\[0\]: 0 is not of type \"null\""),
        (b'{"n": 3}', r"\$\.n: 3 is not valid by anyOf"),
    ):
        with pytest.raises(DecodeError, match=why):
            serde.decode(begin + value)


def test_references_are_found_relative_to_the_name_that_the_schema_has(memory: SchemaRegistry) -> None:
    registered(memory, {"$id": "http://example.com/shop/name.json", "type": "string", "maxLength": 3}, "name")
    for own, reference in (("http://example.com/shop/order.json", "name.json"), (None, "name.json")):
        schema: dict[str, Any] = {"properties": {"customer": {"$ref": reference}}}
        if own is not None:
            schema["$id"] = own
        known = SchemaText("JSON", json.dumps(schema), (("name.json", "name", 1),))
        begin = header(memory.register("orders-value", known).schema_id)
        serde: Any = JsonSchema(Any)
        assert serde.decode(begin + b'{"customer": "ada"}') == {"customer": "ada"}
        with pytest.raises(DecodeError, match=r"not valid by|longer than 3"):
            JsonSchema(Any).decode(begin + b'{"customer": "adam"}')
