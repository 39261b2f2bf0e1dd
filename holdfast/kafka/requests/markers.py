"""The request by which a coordinator has a partition's leader write the end of a transaction, for aiokafka's
client, which lacks it.

WriteTxnMarkers, version 1, which Kafka 2.8 and newer speak: kafka.apache.org, protocol, API key 27.
"""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

_TAGS = ("tags", TaggedFields)


class WriteTxnMarkersResponse_v1(Response):  # type: ignore[misc]  # aiokafka is untyped
    API_KEY = 27
    API_VERSION = 1
    SCHEMA = Schema(
        (
            "markers",
            CompactArray(
                ("producer_id", Int64),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")),
                        (
                            "partitions",
                            CompactArray(("partition_index", Int32), ("error_code", Int16), _TAGS),
                        ),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class WriteTxnMarkersRequest_v1(RequestStruct):  # type: ignore[misc]
    API_KEY = 27
    API_VERSION = 1
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = WriteTxnMarkersResponse_v1
    SCHEMA = Schema(
        (
            "markers",
            CompactArray(
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("transaction_result", Boolean),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")), ("partition_indexes", CompactArray(Int32)), _TAGS
                    ),
                ),
                ("coordinator_epoch", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class WriteTransactionMarker(Request[WriteTxnMarkersRequest_v1]):  # type: ignore[misc]
    """The marker of one transaction for one partition."""

    API_KEY = 27

    def __init__(
        self, topic: str, partition: int, producer_id: int, epoch: int, commit: bool, coordinator_epoch: int
    ) -> None:
        topics: list[tuple[str, list[int], dict[int, bytes]]] = [(topic, [partition], {})]
        self._marker: tuple[Any, ...] = (producer_id, epoch, commit, topics, coordinator_epoch, {})

    def build(self, request_struct_class: type[WriteTxnMarkersRequest_v1]) -> WriteTxnMarkersRequest_v1:
        return request_struct_class([self._marker], {})


def code_of(response: Any) -> int:
    """Return the error code in the answer to an `WriteTransactionMarker`, 0 for none."""
    ((_, topics, _),) = response.markers
    ((_, partitions, _),) = topics
    ((_, code, _),) = partitions
    return int(code)
