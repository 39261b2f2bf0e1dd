"""The targets of resets, as forms and URLs write them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.clients.groups.records import GroupKind
from holdfast.clock import Clock, system_clock
from holdfast.console.access import RequestDenied
from holdfast.core.claims.resets import Aim, Scope, Where, parse_datetime_ms, parse_duration_ms, parse_scope
from holdfast.errors import ConfigError

WORDS = {
    Where.EARLIEST: "to the beginning of each partition",
    Where.LATEST: "to the end of each partition",
    Where.OFFSET: "to an offset",
    Where.DATETIME: "to a time",
    Where.DURATION: "back by a duration",
    Where.SHIFT: "by so many records",
}


def kind_of(query: Mapping[str, str]) -> GroupKind:
    """Return the kind of group that a URL names; RequestDenied for another word."""
    asked = query.get("kind", "")
    if asked not in [str(each) for each in GroupKind]:
        raise RequestDenied(400, f"kind is {asked[:40]!r}: write {' or '.join(GroupKind)}.")
    return GroupKind(asked)


def aim_of(query: Mapping[str, str], clock: Clock = system_clock) -> Aim:
    """Return the target of a reset; RequestDenied for an invalid one.

    >>> aim_of({"where": "shift-by", "value": "-3"}), aim_of({"where": "to-datetime", "value": "1970-01-02"}).value
    (Aim(where=<Where.SHIFT: 'shift-by'>, value=-3), 86400000)
    """  # noqa: E501
    asked, text = query.get("where", ""), query.get("value", "").strip()
    if asked not in [str(each) for each in Where]:
        raise RequestDenied(400, f"where is {asked[:40]!r}: write one of {', '.join(Where)}.")
    where = Where(asked)
    try:
        match where:
            case Where.EARLIEST | Where.LATEST:
                return Aim(where)
            case Where.DATETIME:
                return Aim(where, parse_datetime_ms(text))
            case Where.DURATION:
                return Aim(Where.DATETIME, max(0, clock.now_ms() - parse_duration_ms(text)))
            case _:
                return Aim(where, _number(text, signed=where is Where.SHIFT))
    except (ConfigError, OverflowError) as error:
        raise RequestDenied(400, f"value: {str(error)[:200]}") from None


def exact_aim(form: Mapping[str, str]) -> Aim:
    """Return the aim that a previewed form carries: a time in ms, not in words, so that it means the same as
    the preview.

    >>> exact_aim({"where": "to-datetime", "value": "86400000"})
    Aim(where=<Where.DATETIME: 'to-datetime'>, value=86400000)
    """
    where = form.get("where", "")
    if where not in [str(each) for each in Where]:
        raise RequestDenied(400, f"where is {where[:40]!r}: write one of {', '.join(Where)}.")
    return Aim(Where(where), _number(form.get("value", ""), signed=True))


def scope_of(query: Mapping[str, str]) -> Scope:
    """Return which partitions are meant: `orders:0,2 clicks`, all where nothing is written."""
    try:
        return parse_scope(query.get("topics", "").split())
    except ConfigError as error:
        raise RequestDenied(400, f"topics: {str(error).removeprefix('--topic ')[:200]}") from None


def _number(text: str, *, signed: bool) -> int:
    if not re.fullmatch("-?[0-9]{1,15}" if signed else "[0-9]{1,15}", text, re.ASCII):
        raise RequestDenied(
            400, f"value is {text[:40]!r}: write a whole number{'' if signed else ' from 0'}."
        )
    return int(text)
