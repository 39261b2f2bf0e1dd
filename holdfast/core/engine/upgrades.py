"""The move of a table from one version to the next: rules for which version is current, when a later one has
caught up, and what may make it the current one. `agents/partitions/ownership/upgrading.py` carries them out.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

import msgspec

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.untrusted import careful

NO_VERSION = 0
SWITCH_KEY = "switch:"
LIMIT_SWITCH_BYTES = 4 << 10


class Switch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record that says which *version* of a table is current; the last one counts.

    Its key on the workers topic is `switch:TABLE`. *before* is the version that was current until then. *by*
    is "worker" if a worker wrote it, since the version had caught up, or "command" for a person.
    """

    table: str
    version: int
    before: int
    at_ms: int
    by: Literal["worker", "command"]


encode_switch = msgspec.json.Encoder().encode
decode_switch = careful(msgspec.json.Decoder(Switch).decode)


def switch_key(table: str) -> str:
    """Return the key of the switch record of a table.

    >>> switch_key("totals")
    'switch:totals'
    """
    return SWITCH_KEY + table


def read_switch(key: str, value: bytes) -> Switch:
    """Return the switch in a record; raises ValueError for one that no worker and no command writes."""
    if len(value) > LIMIT_SWITCH_BYTES:
        raise ValueError(f"{len(value)} bytes, {LIMIT_SWITCH_BYTES} are the limit")
    try:
        found = decode_switch(value)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is unreadable: {error}") from None
    if switch_key(found.table) != key:
        raise ValueError(f"its key is {key[:80]!a} and its table {found.table[:80]!a}")
    if found.version < 1 or found.before < NO_VERSION:
        raise ValueError(f"version {found.version} after {found.before}")
    return found


def versions_on(app: str, name: str, topics: Mapping[str, int], partitions: int) -> tuple[int, ...]:
    """Return the versions of a table that have a changelog of so many *partitions* among *topics* (their
    partitions by name), ascending.

    >>> versions_on("shop", "totals", {"shop-totals.v1-changelog": 4, "shop-totals.v3-changelog": 4, "shop-totals.v2-changelog": 2}, 4)
    (1, 3)
    """  # noqa: E501
    changelog = re.compile(re.escape(f"{app}-{name}.v") + r"([1-9][0-9]{0,8})-changelog")
    found = ((changelog.fullmatch(topic), count) for topic, count in topics.items())
    return tuple(sorted(int(match[1]) for match, count in found if match is not None and count == partitions))


def current_version(own: int, known: Collection[int], switch: Switch | None) -> int:
    """Return the current version of a table, for a worker that runs *own*; *known* versions have a changelog.

    Without a record it is the highest that there was before.

    >>> current_version(3, [1, 2, 3], None), current_version(1, [1], None), current_version(1, [1, 2], None)
    (2, 1, 1)
    >>> taken_back = Switch(table="t", version=1, before=2, at_ms=0, by="command")
    >>> current_version(2, [1, 2], taken_back), current_version(2, [2], taken_back)
    (1, 2)
    """
    if switch is not None:
        return switch.version if switch.version in known else own
    return max((version for version in known if version < own), default=own)


def kept_version(
    own: int, known: Collection[int], switch: Switch | None, *, now_ms: int, kept_ms: int
) -> int | None:
    """Return the other version that a worker of *own* keeps readable, None for none: the current one,
    which may be a later one where old workers come back, and for *kept_ms* after the switch to *own* the one
    before it.
    """
    current = current_version(own, known, switch)
    if current != own:
        return current
    if switch is None or now_ms >= switch.at_ms + kept_ms:
        return None
    return switch.before if switch.before < own and switch.before in known else None


def has_caught_up(
    reached: Mapping[str, int], ends: Mapping[str, int], before: Mapping[str, int] | None
) -> bool:
    """Return whether a version that folded each source up to *reached* (by topic, -1 for nothing) shows no
    less than the one *before* it, or all that its sources hold: up to *ends*, the next offset of each, where
    that is known.

    >>> has_caught_up({"orders": 7}, {}, {"orders": 7}), has_caught_up({"orders": 6}, {}, {"orders": 7})
    (True, False)
    >>> has_caught_up({"orders": 6}, {"orders": 7}, None), has_caught_up({"orders": 6}, {}, None)
    (True, False)
    """

    def there(topic: str, offset: int) -> bool:
        if before is not None and topic in before and offset >= before[topic]:
            return True
        return topic in ends and offset + 1 >= ends[topic]

    return all(there(topic, offset) for topic, offset in reached.items())


def writers_of(processor: Processor[Any, Any], processors: Iterable[Processor[Any, Any]]) -> list[str]:
    """Return the names of those that write the internal topics that *processor* reads: it cannot have caught
    up before them.
    """
    wanted = set(processor.internal)
    return [each.name for each in processors if wanted.intersection(each.emits)]


def all_writers_of(processor: Processor[Any, Any], processors: Collection[Processor[Any, Any]]) -> list[str]:
    """Return the names of those that *processor* has its records from, in however many steps; without those
    that have theirs from it too, and itself: they would wait for each other.
    """
    by_name = {each.name: each for each in processors}
    return [
        name
        for name in _writers_before(processor, by_name)
        if processor.name not in _writers_before(by_name[name], by_name)
    ]


def _writers_before(processor: Processor[Any, Any], by_name: Mapping[str, Processor[Any, Any]]) -> list[str]:
    processors = by_name.values()
    found = list[str]()
    left = writers_of(processor, processors)
    while left:
        name = left.pop()
        if name not in found:
            found.append(name)
            left += writers_of(by_name[name], processors)
    return found


def is_complete(owners: Callable[[int], tuple[str, bool] | None], partitions: int) -> bool:
    """Return whether every partition of a table in a version is served and not being built any more. *owners*
    returns the URL and whether it is being built, None for an unclaimed partition.
    """
    found = [owners(partition) for partition in range(partitions)]
    return bool(found) and all(each is not None and not each[1] for each in found)


def next_switch(
    table: str, own: int, current: int, switch: Switch | None, *, complete: bool, now_ms: int
) -> Switch | None:
    """Return the record by which a worker makes its *own* version the current one, None when it may not:
    while it is not *complete*, and after a person has switched back from it.

    >>> next_switch("t", 2, 1, None, complete=False, now_ms=9) is None
    True
    >>> first = next_switch("t", 2, 1, None, complete=True, now_ms=9)
    >>> first
    Switch(table='t', version=2, before=1, at_ms=9, by='worker')
    >>> next_switch("t", 2, 1, msgspec.structs.replace(first, version=1, before=2, by="command"), complete=True, now_ms=9) is None
    True
    """  # noqa: E501
    if not complete or current >= own:
        return None
    if switch is not None and switch.by == "command" and switch.before == own:
        return None
    return Switch(table=table, version=own, before=current, at_ms=now_ms, by="worker")


def first_switch(
    table: str,
    own: int,
    known: Collection[int],
    served: Collection[int],
    switch: Switch | None,
    *,
    now_ms: int,
) -> Switch | None:
    """Return the record that a worker writes that runs *own* and finds none. It names the version that was
    current until then, so that no later version that never caught up is taken for it. That is the highest
    before *own* that workers serve or, where they serve none, that has a changelog. None where there is a
    record, or no version before.

    >>> first_switch("t", 3, [1, 2, 3], [1], None, now_ms=9)
    Switch(table='t', version=1, before=0, at_ms=9, by='worker')
    >>> first_switch("t", 3, [1, 2, 3], [], None, now_ms=9).version, first_switch("t", 1, [1], [], None, now_ms=9)
    (2, None)
    """  # noqa: E501
    before = [version for version in known if version < own]
    if switch is not None or not before:
        return None
    version = max([version for version in before if version in served] or before)
    return Switch(table=table, version=version, before=NO_VERSION, at_ms=now_ms, by="worker")


def in_version(processor: Processor[Any, Any], version: int) -> Processor[Any, Any]:
    """Return a substitute for *processor* in another version, whose code is not here: its names are
    right, and neither its fold nor its row type may be used.
    """
    found = copy.copy(processor)
    object.__setattr__(found, "version", version)
    return found
