"""In how many ways a JSON Schema comes to one of its parts for the same value, by references that go out and
meet again.

A validator that looks at a part once for each way needs exponential time for a schema of a few lines. Of
parts that refer back to themselves it remembers what it has looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

LIMIT_PLACES: Final = 5_000
"""The most positions in values that are examined: authors of larger schemas must know them."""
_ONE: Final = ("not", "if", "then", "else", "propertyNames")
_MANY: Final = ("allOf", "anyOf", "oneOf")
_NAMED: Final = ("dependentSchemas", "dependencies")
_IN_ALL: Final = ("additionalProperties", "unevaluatedProperties")
_IN_ITEMS: Final = ("additionalItems", "unevaluatedItems", "contains")

Place = tuple[str, str]
"""A document, "" for the whole schema, and the pointer to a part of it."""


class Ways:
    """Counts the ways in the schemas of *documents*, by their names.

    >>> twice = [{"$ref": "#/$defs/b"}] * 2
    >>> Ways({"": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": twice}, "b": {}}}}).exceed(1)
    True
    """

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self._back = set[tuple[Place, Place]]()
        self._seen, self._within = set[Place](), set[Place]()

    def exceed(self, limit: int) -> bool:
        """Return whether some part is reached in more than *limit* ways, as far as positions were
        examined.
        """
        root = ("", "")
        self._mark(root)
        pending, seen = [{root: 1}], set[frozenset[tuple[Place, int]]]()
        while pending and len(seen) < LIMIT_PLACES:
            ways = self._here(pending.pop())
            if max(ways.values(), default=0) > limit:
                return True
            for below in self._below(ways).values():
                same = frozenset(below.items())
                if same not in seen:
                    seen.add(same)
                    pending.append(dict(below))
        return False

    def _mark(self, root: Place) -> None:
        """Find the references that lead back to where they are."""
        stack: list[tuple[Place, Iterator[Place]]] = [(root, iter(self._next(root)))]
        self._seen.add(root)
        self._within.add(root)
        while stack:
            place, left = stack[-1]
            following = next(left, None)
            if following is None:
                stack.pop()
                self._within.discard(place)
            elif following in self._within:
                self._back.add((place, following))
            elif following not in self._seen:
                self._seen.add(following)
                self._within.add(following)
                stack.append((following, iter(self._next(following))))

    def _next(self, place: Place) -> list[Place]:
        return [*self._beside(place), *(each for _, each in self._parts(place))]

    def _here(self, begun: Mapping[Place, int]) -> Counter[Place]:
        """Return in how many ways each part is come to without going into the value."""
        order: list[Place] = []
        done = set[Place]()
        for root in begun:
            stack: list[tuple[Place, Iterator[Place]]] = []
            if root not in done:
                done.add(root)
                stack.append((root, iter(self._forward(root))))
            while stack:
                place, left = stack[-1]
                following = next(left, None)
                if following is None:
                    order.append(place)
                    stack.pop()
                elif following not in done:
                    done.add(following)
                    stack.append((following, iter(self._forward(following))))
        ways = Counter(begun)
        for place in reversed(order):
            for following in self._forward(place):
                ways[following] += ways[place]
        return ways

    def _forward(self, place: Place) -> list[Place]:
        return [each for each in self._beside(place) if (place, each) not in self._back]

    def _below(self, ways: Mapping[Place, int]) -> dict[str, Counter[Place]]:
        """Return by the names of members, and for items, in how many ways each part is come to there."""
        found: dict[str, Counter[Place]] = {}
        for place, count in ways.items():
            for name, each in self._parts(place):
                if (place, each) not in self._back:
                    found.setdefault(name, Counter())[each] += count
            for each in self._beside(place):  # a remembered one counts once
                if (place, each) in self._back:
                    found.setdefault("", Counter())[each] = 1
        return found

    def _at(self, place: Place) -> Any:
        schema = self._documents.get(place[0])
        for step in place[1].split("/")[1:]:
            step = step.replace("%25", "%").replace("~1", "/").replace("~0", "~")
            if isinstance(schema, Mapping):
                schema = schema.get(step)
            else:
                schema = schema[int(step)] if isinstance(schema, list) and step.isdecimal() else None
        return schema

    def _beside(self, place: Place) -> list[Place]:
        """Return the parts that look at the same value."""
        (document, pointer), schema = place, self._at(place)
        if not isinstance(schema, Mapping):
            return []
        found = [(document, f"{pointer}/{name}") for name in _ONE if name in schema]
        for name in _MANY:
            if isinstance(schema.get(name), list):
                found += [(document, f"{pointer}/{name}/{number}") for number in range(len(schema[name]))]
        for name in _NAMED:
            if isinstance(schema.get(name), Mapping):
                found += [(document, f"{pointer}/{name}/{_escaped(key)}") for key in schema[name]]
        if isinstance(reference := schema.get("$ref"), str):
            other, _, to = reference.partition("#")
            found.append((other or document, to))
        return found

    def _parts(self, place: Place) -> Iterator[tuple[str, Place]]:
        """Yield the parts that look into the value, by the member that they look at."""
        (document, pointer), schema = place, self._at(place)
        if not isinstance(schema, Mapping):
            return
        for keyword in ("properties", "patternProperties"):
            if isinstance(schema.get(keyword), Mapping):
                for name in schema[keyword]:
                    yield f".{name}", (document, f"{pointer}/{keyword}/{_escaped(name)}")
        for keyword in ("items", "prefixItems"):
            if isinstance(schema.get(keyword), list):
                for number in range(len(schema[keyword])):
                    yield "[]", (document, f"{pointer}/{keyword}/{number}")
            elif keyword in schema:
                yield "[]", (document, f"{pointer}/{keyword}")
        for keyword in _IN_ALL:
            if keyword in schema:
                yield ".", (document, f"{pointer}/{keyword}")
        for keyword in _IN_ITEMS:
            if keyword in schema:
                yield "[]", (document, f"{pointer}/{keyword}")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
