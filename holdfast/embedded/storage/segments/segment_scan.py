"""The batches in a segment's file, up to the first incomplete one."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from holdfast.core.kafka.record_batch import CRC_FROM, OVERHEAD_BYTES, BatchHeader, decode_header
from holdfast.embedded.storage.disk import folder_error
from holdfast.errors import WireError


class SegmentScan:
    """Iterates over the headers of a segment from offset *base* on. `end` is where the last whole batch ends,
    and *trouble* the fault there, "" at the end of the file.

    A batch that ends at offset *checked_from* or later must have its checksum: the last write may be there in
    part.
    """

    def __init__(self, path: Path, base: int, *, checked_from: int) -> None:
        self._path, self._next, self._checked_from = path, base, checked_from
        self.end, self.trouble = 0, ""

    def __iter__(self) -> Iterator[BatchHeader]:
        try:
            with self._path.open("rb") as file:
                if self._path.stat().st_size:
                    with (
                        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
                        memoryview(data) as view,
                    ):
                        yield from self._headers(view)
        except OSError as error:
            raise folder_error("read", self._path, error) from error

    def _headers(self, data: memoryview) -> Iterator[BatchHeader]:
        at, left = 0, len(data)
        while at < left:
            self.end = at
            try:
                header = decode_header(data, at)
            except WireError as error:
                self.trouble = str(error)
                return
            end, last = (
                at + OVERHEAD_BYTES + header.batch_length,
                header.base_offset + header.last_offset_delta,
            )
            if end > left:
                self.trouble = f"a batch of {end - at} bytes, {left - at} are left"
                return
            if header.base_offset < self._next:
                self.trouble = f"a batch of offset {header.base_offset} where {self._next} is the next"
                return
            is_checked = last >= self._checked_from
            if is_checked and google_crc32c.value(bytes(data[at + CRC_FROM : end])) != header.crc32c:
                self.trouble = "a batch whose checksum does not fit"
                return
            at, self._next = end, last + 1
            yield header
        self.end = at
