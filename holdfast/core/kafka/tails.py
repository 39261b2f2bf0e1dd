"""Decides whether a log's tail holds records at all: markers of commits and aborted records take offsets
too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from holdfast.core.kafka.record_batch import HEADER_BYTES, decode_header


def only_markers(data: bytes, first: int, end: int, aborted: Iterable[tuple[int, int]]) -> bool:
    """Return whether *data*, what lies in a log from the batch of *first* on, shows that no committed record
    does from there to *end*.

    *aborted* are (producer id, first offset) of the transactions in it that were aborted. Only headers are
    read: however large a batch is unpacked, it is not unpacked here. *data* may end in the middle of a batch.
    """
    ended: dict[int, deque[int]] = {}
    for producer, begin in sorted(aborted, key=lambda each: each[1]):
        ended.setdefault(producer, deque()).append(begin)
    at, reached = 0, first
    while at + HEADER_BYTES <= len(data) and reached < end:
        header = decode_header(data, at)
        at += header.size_bytes
        begins = ended.get(header.producer_id)
        is_aborted = begins is not None and bool(begins) and begins[0] <= header.base_offset
        if header.is_control:
            if begins is not None and is_aborted:
                begins.popleft()
        elif (
            header.last_offset >= first
            and header.records_count
            and not (header.is_transactional and is_aborted)
        ):
            return False
        reached = max(reached, header.last_offset + 1)
    return reached >= end or not data
