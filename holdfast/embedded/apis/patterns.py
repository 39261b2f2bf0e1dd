"""Patterns that clients send, matched in linear time as by Kafka's RE2: a pattern that would have Python's
`re` try for ever costs no more than any other.

Python's own parser reads the pattern; its machine does not run it. A pattern becomes states, and a name is
led through all states that it may be in at once. Each set of states that was met is remembered, so most names
cost a look-up for each letter.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from functools import lru_cache
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple, TypeAlias

LIMIT_PATTERN, LIMIT_STATES, LIMIT_SETS = 4_096, 2_000, 2_000
"""Letters of a pattern; states that it becomes, as `(a{1000}){1000}` would many; sets that are remembered."""
_KEPT_PATTERNS = 64
_TOO_LARGE = "pattern too large - compile failed"
_UNSUPPORTED = "it looks around or back, which no pattern of the broker may, as in RE2"

_Test: TypeAlias = Any
"""The test of a letter: a compiled pattern of one letter; None for a step that takes no letter."""


class PatternTrouble(NamedTuple):
    """The fault of a pattern."""

    text: str


class _Step:
    """A state of the match: *test* is the test of the next letter, *steps* are the states that follow without
    one or after it; *edge* restricts the state to the begin or the end.
    """

    __slots__ = ("edge", "steps", "test")

    def __init__(self) -> None:
        self.test: _Test = None
        self.edge = ""
        self.steps: list[int] = []


class NamePattern:
    """A pattern that whole names are held against."""

    def __init__(self, pattern: str) -> None:
        self._states: list[_Step] = []
        self._made = 0
        """The number of its parts that became states, each as often as it is repeated."""
        parsed = parser.parse(pattern)
        self._flags = parsed.state.flags & (re.IGNORECASE | re.DOTALL | re.ASCII)
        self._end = self._new()
        self._start = self._sequence(parsed, self._end)
        self._follows: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._first = self._closed({self._start}, at_begin=True, at_end=False)

    # -- making states, from the last to the first

    def _new(self) -> int:
        if len(self._states) >= LIMIT_STATES:
            raise re.error(_TOO_LARGE)
        self._states.append(_Step())
        return len(self._states) - 1

    def _sequence(self, items: Iterable[tuple[Any, Any]], then: int) -> int:
        self._made += 1
        if self._made > LIMIT_STATES:
            raise re.error(_TOO_LARGE)
        for op, value in reversed(list(items)):
            then = self._item(op, value, then)
        return then

    def _item(self, op: Any, value: Any, then: int) -> int:
        if op in (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN, ops.CATEGORY):
            return self._letter(op, value, then)
        if op is ops.BRANCH:
            return self._split([self._sequence(each, then) for each in value[1]])
        if op is ops.SUBPATTERN:
            if value[1] & ~re.IGNORECASE or value[2]:
                raise re.error(_UNSUPPORTED)
            return self._sequence(value[3], then)
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            least, most, repeated = value
            return self._repeated(least, most, repeated, then)
        if op is ops.AT and value in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
            return self._edge("begin", then)
        if op is ops.AT and value in (ops.AT_END, ops.AT_END_STRING):
            return self._edge("end", then)
        raise re.error(_UNSUPPORTED)

    def _letter(self, op: Any, value: Any, then: int) -> int:
        made = self._new()
        self._states[made].test, self._states[made].steps = (op, value), [then]
        return made

    def _split(self, ways: list[int]) -> int:
        made = self._new()
        self._states[made].steps = ways
        return made

    def _edge(self, edge: str, then: int) -> int:
        made = self._split([then])
        self._states[made].edge = edge
        return made

    def _repeated(self, least: int, most: Any, items: Any, then: int) -> int:
        if most is ops.MAXREPEAT:
            loop = self._split([then])
            self._states[loop].steps.append(self._sequence(items, loop))
            then = loop
        else:
            for _ in range(most - least):
                then = self._split([then, self._sequence(items, then)])
        for _ in range(least):
            then = self._sequence(items, then)
        return then

    # -- leading a name through them

    def matches(self, name: str) -> bool:
        """Return whether the pattern means *name*, from its first letter to its last."""
        there = self._first
        for letter in name:
            key = there, letter
            after = self._follows.get(key)
            if after is None:
                if len(self._follows) >= LIMIT_SETS:
                    self._follows.clear()
                after = self._follows[key] = self._after(there, letter)
            if not after:
                return False
            there = after
        return self._end in self._closed(there, at_begin=not name, at_end=True)

    def _after(self, there: frozenset[int], letter: str) -> frozenset[int]:
        steps: set[int] = set()
        for number in there:
            state = self._states[number]
            if state.test is not None and self._passes(state.test[0], state.test[1], letter):
                steps.update(state.steps)
        return self._closed(steps, at_begin=False, at_end=False)

    def _closed(self, there: Iterable[int], *, at_begin: bool, at_end: bool) -> frozenset[int]:
        """Return *there* with all that is reached without another letter."""
        found, left = set[int](), list(there)
        while left:
            number = left.pop()
            if number in found:
                continue
            found.add(number)
            state = self._states[number]
            open_ = {"": True, "begin": at_begin, "end": at_end}[state.edge]
            if state.test is None and open_:
                left += state.steps
        return frozenset(found)

    def _passes(self, op: Any, value: Any, letter: str) -> bool:
        if op is ops.ANY:
            return bool(self._flags & re.DOTALL) or letter != "\n"
        if op is ops.IN:
            negated = value[0][0] is ops.NEGATE
            return any(self._is(kind, told, letter) for kind, told in value[negated:]) is not negated
        if op is ops.NOT_LITERAL:
            return not self._is(ops.LITERAL, value, letter)
        return self._is(op, value, letter)

    def _is(self, op: Any, value: Any, letter: str) -> bool:
        cases = {letter, letter.lower(), letter.upper()} if self._flags & re.IGNORECASE else {letter}
        codes = [ord(each) for each in cases if len(each) == 1]
        if op is ops.LITERAL:
            return value in codes
        if op is ops.RANGE:
            return any(value[0] <= each <= value[1] for each in codes)
        kind, negated = _CATEGORIES[value]
        return (kind.fullmatch(letter) is not None) is not negated


_DIGIT, _SPACE, _WORD = (re.compile(f"\\{each}", re.ASCII) for each in "dsw")
_CATEGORIES = {
    ops.CATEGORY_DIGIT: (_DIGIT, False),
    ops.CATEGORY_NOT_DIGIT: (_DIGIT, True),
    ops.CATEGORY_SPACE: (_SPACE, False),
    ops.CATEGORY_NOT_SPACE: (_SPACE, True),
    ops.CATEGORY_WORD: (_WORD, False),
    ops.CATEGORY_NOT_WORD: (_WORD, True),
}


@lru_cache(_KEPT_PATTERNS)
def name_pattern(pattern: str) -> NamePattern | PatternTrouble:
    """Return *pattern*, to be matched; or its fault, in Python's words."""
    if len(pattern) > LIMIT_PATTERN:
        return PatternTrouble(f"it has {len(pattern)} letters, at most {LIMIT_PATTERN} may be")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a nested set is one of letters, as in RE2
            return NamePattern(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return PatternTrouble(str(error))
