"""Requests whose bodies are made elsewhere, as aiokafka's connections take them: its own are slow to pack,
and know no new versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from struct import Struct
from typing import Any, NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion

from holdfast.core.kafka.transaction_requests import NO_TAGS
from holdfast.core.kafka.wire import WireReader

_HEADER = Struct(">hhih")


class _Raw(NamedTuple):
    """Bytes where aiokafka expects something that it can have packed."""

    data: bytes

    def encode(self) -> bytes:
        return self.data


class _Answered(NamedTuple):
    """The header of an answer."""

    correlation_id: int


class RawRequest:
    """One request: its API key, the versions of which the newest that the broker knows is asked for, and the
    body they share.

    With *tagged* false the answer's header has no tagged fields; only that of ApiVersions has none. An answer
    comes as its bytes.
    """

    def __init__(self, key: int, versions: range, body: bytes, *, tagged: bool = True) -> None:
        self._key, self._versions, self._body, self._tagged = key, versions, body, tagged
        self.version = versions[-1]

    @property
    def RESPONSE_TYPE(self) -> RawRequest:
        return self

    def prepare(self, known: Mapping[int, tuple[int, int]]) -> RawRequest:
        """Choose the version by what the broker at the other end knows."""
        lowest, highest = known.get(self._key, (0, -1))
        common = [version for version in self._versions if lowest <= version <= highest]
        if not common:
            raise IncompatibleBrokerVersion(
                f"API {self._key}: the broker knows {lowest} to {highest}, needed is {self._versions}"
            )
        self.version = common[-1]
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> _Raw:
        name = client_id.encode()
        return _Raw(_HEADER.pack(self._key, self.version, correlation_id, len(name)) + name + NO_TAGS)

    def encode(self) -> bytes:
        return self._body

    def parse_response_header(self, buffer: BytesIO) -> _Answered:
        reader = WireReader(buffer.getvalue())
        header = _Answered(reader.int32("correlation id"))
        if self._tagged:
            reader.tags("header")
        buffer.seek(reader.at)
        return header

    def decode(self, buffer: BytesIO) -> Any:
        return buffer.read()
