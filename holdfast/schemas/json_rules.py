"""Validates JSON values by a JSON Schema, in time that grows with the value alone.

The validator is compiled: it knows what it has looked at, so branches that refer to each other cost no more
than their sum, and its regular expressions do not backtrack. What it leaves open is closed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin

import msgspec

from holdfast.core.untrusted.nesting import LIMIT_DEPTH, TEXTS, is_shallow
from holdfast.errors import ConfigError, DecodeError
from holdfast.schemas.bounded import Bounded
from holdfast.schemas.json_ways import Ways
from holdfast.schemas.types import missing

LIMIT_DEPTH_UNIQUE: Final = 250
"""So deep the validator finds unique items by their hashes; deeper, it compares each item with each."""
LIMIT_DEPTH_LARGE: Final = 12
LIMIT_UNIQUE_BYTES: Final = 8_000_000
"""So deep, or so many bytes for each depth together, a value may be of which unique items are found here: at
each depth, all that is below is looked at again.
"""
LIMIT_BACKTRACKS: Final = 20_000
"""So many steps may a search take for an expression with look-around or references, which needs backtracking:
a millisecond. A text that takes more is not valid.
"""
LIMIT_WAYS: Final = 1_000
"""In so many ways may a schema come to one of its parts for the same value: each is looked at."""
LIMIT_REASON_STEPS: Final = 64
LIMIT_REASON_BYTES: Final = 10_000_000
"""So much may be looked at for a reason: steps into a long value are fewer."""
_FEW: Final = 8
_TOGETHER: Final = 1_024
"""So many parts of a value are looked at by one schema: to make a schema takes longer than to use it."""
LIMIT_PARTS: Final = 1_000
_DRAFT_3: Final = "http://json-schema.org/draft-03/schema"
_ROOT: Final = "json-schema:///holdfast-root"
"""The whole schema, relative to which names without a scheme are looked for."""
_LARGE: Final = re.compile(rb"\d{19}")
"""A number that may have 64 bits or more."""
_NO_RULES: Final = ("contentMediaType", "contentEncoding")
"""Keywords that describe a text, and are no rules; the validator takes them for rules in older drafts."""
_OF_ITSELF: Final = frozenset(
    [
        "type",
        "enum",
        "const",
        "multipleOf",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "maxProperties",
        "minProperties",
        "required",
        "dependentRequired",
    ]
)
"""Keywords that look at a value without another schema."""
_NO_KEYWORDS: Final = frozenset(
    [
        "$schema",
        "$id",
        "id",
        "$anchor",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
    ]
)


class JsonRules:
    """The rules of *schema*, which may refer to *named* schemas; nothing is fetched from anywhere.

    ConfigError for an invalid schema, a missing reference, or an expression that cannot be matched in bounded
    time.

    >>> JsonRules({"type": "integer", "maximum": 3}).check(4, b"4")
    Traceback (most recent call last):
    holdfast.errors.DecodeError: $: 4 is greater than the maximum of 3
    """

    def __init__(self, schema: Any, named: Mapping[str, Any] | None = None) -> None:
        self._schema, self._named = schema, dict(named or {})
        self._text = b"".join(map(msgspec.json.encode, (schema, *self._named.values())))
        self._rules = self._compiled(schema)
        if b'"$ref"' in self._text and Ways({"": schema, **self._named}).exceed(LIMIT_WAYS):
            raise ConfigError(
                "the JSON Schema cannot be used: its references come to the same part in more than"
                f" {LIMIT_WAYS} ways, and each takes its time; let them meet less often, or give"
                " validate=False"
            )
        self._rules_of_large = self._compiled(schema, unique=True) if b'"uniqueItems"' in self._text else None
        self._parts: Bounded[str, Any] = Bounded(LIMIT_PARTS)

    def check(self, value: Any, encoded: bytes) -> None:
        """Raise DecodeError where *value*, which *encoded* means, is not valid."""
        rules = self._rules if self._rules_of_large is None else self._rules_for(encoded)
        if not is_shallow(encoded):
            raise DecodeError(f"it nests more than {LIMIT_DEPTH} deep")
        if not rules.is_valid(value):
            raise DecodeError(self._why(value, len(encoded)))

    def _rules_for(self, encoded: bytes) -> Any:
        """Return the validator that compares items of a value for uniqueness; DecodeError for a value that
        would take longer than it is long.
        """
        # The validator has one hash for all numbers of 64 bits and more, and none for what nests deep.
        is_large = _LARGE.search(encoded) and _LARGE.search(TEXTS.sub(b"", encoded))
        if not is_large and is_shallow(encoded, LIMIT_DEPTH_UNIQUE):
            return self._rules
        work = max(LIMIT_DEPTH_LARGE, LIMIT_UNIQUE_BYTES // len(encoded))
        if work < LIMIT_DEPTH and not is_shallow(encoded, work):
            raise DecodeError(
                f"it has {len(encoded)} bytes, nests more than {work} deep, and its items must be unique: too"
                " much to compare"
            )
        return self._rules_of_large

    def _compiled(self, schema: Any, *, unique: bool = False, root: bool = False) -> Any:
        """Return the validator of *schema*; *unique* has equal items found here, and *root* lets it refer to
        the whole schema.
        """
        try:
            import jsonschema_rs as compiler
        except ImportError as error:
            raise missing("jsonschema", error) from error
        kind, schema = _dialect(compiler, schema, self._schema)
        keywords: dict[str, Any] = {name: _NoRule for name in _NO_RULES if f'"{name}"'.encode() in self._text}
        if unique:
            keywords["uniqueItems"] = _UniqueItems
        resources = [*self._resources(), *([(_ROOT, self._schema)] if root else [])]
        failure: Exception | None = None
        # Expressions that need backtracking are searched by another engine, with a limit.
        for expressions in (
            compiler.RegexOptions(),
            compiler.FancyRegexOptions(backtrack_limit=LIMIT_BACKTRACKS),
        ):
            try:
                return kind(
                    schema,
                    registry=compiler.Registry(resources, retriever=_away),
                    retriever=_away,
                    validate_formats=False,
                    pattern_options=expressions,
                    keywords=keywords or None,
                )
            except (compiler.ValidationError, compiler.ReferencingError, ValueError, TypeError) as error:
                failure = error
        told = getattr(failure, "message", None) or str(failure)
        raise ConfigError(f"the JSON Schema cannot be used: {told:.500}") from failure

    def _resources(self) -> Iterator[tuple[str, Any]]:
        own = self._schema.get("$id") if isinstance(self._schema, Mapping) else None
        for name, each in self._named.items():
            yield name, each
            if isinstance(own, str):  # as Confluent's readers look for it
                yield urljoin(own, name), each

    # -- reasons

    def _why(self, value: Any, size: int) -> str:
        """Return the fault of an invalid value, as far as some steps into it show.

        The validator's own reasons list the faults by all branches, which may be exponentially many.
        """
        at, place, schema = _Within("", "", value), "$", self._schema
        for _ in range(min(LIMIT_REASON_STEPS, 1 + LIMIT_REASON_BYTES // (size + 1))):
            document = self._named[at.document] if at.document else self._schema
            schema = _at(document, at.pointer)
            if not isinstance(schema, Mapping):
                break
            try:
                if (why := self._why_itself(schema, at.value)) is not None:
                    return f"{place}: {why}"
                within = self._first_invalid(self._within(schema, at))
            except ConfigError:  # a part of it alone is no schema
                break
            if within is None:
                break
            at, place = within, place + within.place
        names = [each for each in schema if each not in _NO_KEYWORDS] if isinstance(schema, Mapping) else []
        return f"{place}: {_shown(at.value)} is not valid by {', '.join(names)[:200] or 'its schema'}"

    def _within(self, schema: Mapping[str, Any], at: _Within) -> Iterator[_Within]:
        """Yield the parts of a value that must be valid whatever else is."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            document, _, pointer = reference.partition("#")
            if (not document or document in self._named) and (not pointer or pointer.startswith("/")):
                yield _Within(document or at.document, pointer, at.value)
        yield from _parts(schema, at)

    def _why_itself(self, schema: Mapping[str, Any], value: Any) -> str | None:
        own = {name: each for name, each in schema.items() if name in _OF_ITSELF}
        if not own:
            return None
        rules = self._compiled(own, unique=True)
        try:
            rules.validate(value)
        except ValueError as error:
            return _cut(getattr(error, "message", None) or str(error))
        return None

    def _first_invalid(self, parts: Iterator[_Within]) -> _Within | None:
        """Return the first of *parts* that is not valid, None where all are.

        Many parts of schemas of their own are halved until it is found.
        """
        while some := list(islice(parts, _TOGETHER)):
            places = {(each.document, each.pointer) for each in some}
            if len(places) <= _FEW:
                if (found := next((each for each in some if not self._is_valid(each)), None)) is not None:
                    return found
            elif not self._are_valid(some):
                while len(some) > 1:
                    half = some[: len(some) // 2]
                    some = some[len(half) :] if self._are_valid(half) else half
                return some[0]
        return None

    def _are_valid(self, parts: Sequence[_Within]) -> bool:
        rules = {str(number): {"$ref": _place(each)} for number, each in enumerate(parts)}
        compiled = self._compiled({"properties": rules}, unique=True, root=True)
        return bool(compiled.is_valid({str(number): each.value for number, each in enumerate(parts)}))

    def _is_valid(self, part: _Within) -> bool:
        place = _place(part)
        if (known := self._parts.used(place)) is None:
            known = self._parts[place] = self._compiled({"$ref": place}, unique=True, root=True)
        return bool(known.is_valid(part.value))


class _NoRule:
    """A keyword by which every value is valid."""

    def __init__(self, parent: Any, value: Any, place: Any) -> None: ...

    def validate(self, instance: Any) -> None: ...


class _UniqueItems:
    """The keyword `uniqueItems`, by hashes that cannot be made to collide."""

    def __init__(self, parent: Any, value: Any, place: Any) -> None:
        self._is_asked = value is True

    def validate(self, instance: Any) -> None:
        """Raise where two items are equal."""
        if (
            self._is_asked
            and isinstance(instance, list)
            and len(set(map(_hashable, instance))) < len(instance)
        ):
            raise ValueError(f"{_shown(instance)} has non-unique elements")


def _hashable(value: Any) -> Any:
    """Return the same for values that are equal as JSON, in a form whose hash the author of many values
    cannot choose.

    >>> _hashable([1, {"a": True}]) == _hashable([1.0, {"a": True}]), _hashable(1) == _hashable(True)
    (True, False)
    """
    match value:
        case bool() | None:
            return value, None
        case float() if value.is_integer():
            return "number", str(int(value))
        case int() | float():
            return "number", str(value)
        case list():
            return tuple(map(_hashable, value))
        case dict():
            return frozenset((name, _hashable(each)) for name, each in value.items())
    return value


class _Within(NamedTuple):
    """A part of a value with the schema that it must be valid by: *document* names it, "" for the whole one,
    and *pointer* leads to it. *place* is the part's own path.
    """

    document: str
    pointer: str
    value: Any
    place: str = ""


def _place(part: _Within) -> str:
    return f"{part.document or _ROOT}#{part.pointer}"


def _parts(schema: Mapping[str, Any], at: _Within) -> Iterator[_Within]:
    document, pointer, value, _ = at
    for number, _ in enumerate(schema.get("allOf", ())):
        yield _Within(document, f"{pointer}/allOf/{number}", value)
    if isinstance(value, dict):
        for name in schema.get("properties", ()):
            if name in value:
                within = f"{pointer}/properties/{_escaped(name)}"
                yield _Within(document, within, value[name], f".{name:.100}")
    elif isinstance(value, list):
        for keyword in ("prefixItems", "items"):
            if isinstance(items := schema.get(keyword), list):
                for number, _ in enumerate(items[: len(value)]):
                    yield _Within(document, f"{pointer}/{keyword}/{number}", value[number], f"[{number}]")
        if isinstance(schema.get("items"), Mapping):
            for number in range(len(schema.get("prefixItems", ())), len(value)):
                yield _Within(document, f"{pointer}/items", value[number], f"[{number}]")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")


def _at(schema: Any, pointer: str) -> Any:
    """Return the part that *pointer* leads to; None if there is none."""
    for step in pointer.split("/")[1:]:
        step = step.replace("%25", "%").replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping):
            schema = schema.get(step)
        else:
            schema = schema[int(step)] if isinstance(schema, list) and step.isdecimal() else None
    return schema


def _dialect(compiler: Any, schema: Any, whole: Any) -> tuple[Any, Any]:
    """Return the validators' class for the dialect that *whole* names, and *schema* without an unknown one:
    that counts as the newest.
    """
    told = whole.get("$schema") if isinstance(whole, Mapping) else None
    if isinstance(told, str) and told.rstrip("#") == _DRAFT_3:
        raise ConfigError("the JSON Schema cannot be used: it is of draft 3; write it in draft 4 or a later")
    try:
        kind = compiler.validator_cls_for({} if told is None else {"$schema": told})
    except (compiler.ValidationError, compiler.ReferencingError, ValueError, TypeError):
        kind = compiler.Draft202012Validator
        if isinstance(schema, Mapping):
            schema = {name: each for name, each in schema.items() if name != "$schema"}
    return kind, schema


def _away(uri: str) -> Any:
    raise LookupError("nothing is fetched for a schema; register it as a reference")


def _cut(why: str) -> str:
    """Return a reason without the middle of a long value, which it begins with."""
    return why if len(why) <= 400 else f"{why[:200]}...{why[-200:]}"


def _shown(value: Any) -> str:
    return f"{value!r:.200}"
