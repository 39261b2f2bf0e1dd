"""Checks of a table client's arguments: an invalid one is refused before any request, which would otherwise
look like a worker or a broker that does not answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from numbers import Integral
from typing import Any

from holdfast.clients.tables.answers import ReachedOffsets
from holdfast.config.client_arguments import is_seconds
from holdfast.core.engine.query_wire import Staleness
from holdfast.errors import QueryError

LAST_PARTITION = 2**31 - 1
_NAME = re.compile("[a-zA-Z0-9._+/=-]{1,249}")
"""A name that Kafka takes for a topic, or an id that it gives to one: base64."""


def check_timeout(timeout_s: Any) -> None:
    """Refuse anything but a number of seconds."""
    if not is_seconds(timeout_s):
        raise QueryError(f"timeout_s is {timeout_s!r:.100}: write a number of seconds")


def check_terms(timeout_s: Any, partition: Any, at_least: Any, max_staleness: Any) -> None:
    """Refuse terms of an answer that cannot be."""
    check_timeout(timeout_s)
    if partition is not None and not _is_place(partition):
        raise QueryError(f"partition is {partition!r:.100}: write a whole number from 0, or leave it out")
    if at_least is not None and not _is_at_least(at_least):
        raise QueryError(
            f"at_least is {at_least!r:.100}: write (partition, offset), or offsets by partition as {{0: 17}};"
            " of a table of several sources an offset is one by topic, {'orders': 17}; or what an answer had"
            " reached"
        )
    if max_staleness is not None and not (
        isinstance(max_staleness, Staleness | timedelta) or _is_whole(max_staleness)
    ):
        raise QueryError(
            f"max_staleness is {max_staleness!r:.100}: write a datetime.timedelta, or a whole number of"
            " source offsets"
        )


def check_page(prefix: Any, page_rows: Any) -> None:
    """Refuse a scan that cannot be."""
    if not isinstance(prefix, str):
        raise QueryError(f"prefix is {prefix!r:.100}: write text, with which keys begin; '' is for all")
    check_page_rows(page_rows)


def check_page_rows(page_rows: Any) -> None:
    """Refuse anything but a number of rows."""
    if not _is_whole(page_rows) or page_rows < 1:
        raise QueryError(f"page_rows is {page_rows!r:.100}: write a whole number of rows, 1 or more")


def _is_whole(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _is_place(given: Any) -> bool:
    return isinstance(given, Integral) and not isinstance(given, bool) and 0 <= int(given) <= LAST_PARTITION


def _is_at_least(given: Any) -> bool:
    if isinstance(given, ReachedOffsets):
        return _is_at_least(given.offsets) and _are_ids(given.topic_ids)
    if isinstance(given, tuple):
        return len(given) == 2 and _is_place(given[0]) and _is_offset(given[1])
    return isinstance(given, Mapping) and all(
        _is_place(partition) and _is_offset(offset) for partition, offset in given.items()
    )


def _are_ids(given: Any) -> bool:
    return isinstance(given, Mapping) and all(
        isinstance(each, str) and _NAME.fullmatch(each) for pair in given.items() for each in pair
    )


def _is_offset(given: Any) -> bool:
    if isinstance(given, Mapping):
        return all(isinstance(topic, str) and _is_whole(offset) for topic, offset in given.items())
    return _is_whole(given)
