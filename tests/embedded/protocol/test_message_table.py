"""The table of messages, and the codec that it drives."""

from __future__ import annotations

import pytest

from holdfast.core.kafka.fetch_requests import Wanted, fetch_request
from holdfast.embedded.protocol.codec import decode, encode
from holdfast.embedded.protocol.table import apis, message
from holdfast.errors import WireError
from holdfast.jars import kafka_jars
from tests.embedded.protocol.message_table import TABLE, drawn

EVERY = [
    (f"{name}{kind}", version)
    for _, name, versions in apis()
    for kind in ("Request", "Response")
    for version in versions
]


@pytest.mark.kafka
def test_the_table_is_that_of_kafkas_archives() -> None:
    """Marked for the archives, which a broker runs on."""
    table = TABLE.read_text()
    assert drawn(kafka_jars(), table) == table


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_a_message_is_read_back_as_written(name: str, version: int) -> None:
    told = message(name)
    plain = decode(name, version, bytes(encode(name, version, {}, bytearray())))
    assert plain.keys() == {each.name for each in told.fields}
    again = bytes(encode(name, version, plain, bytearray()))
    assert again == encode(name, version, {}, bytearray())


@pytest.mark.parametrize(("name", "version"), EVERY[::7])
def test_a_message_that_is_cut_short_is_an_error(name: str, version: int) -> None:
    whole = bytes(encode(name, version, {}, bytearray()))
    for size in range(len(whole)):
        with pytest.raises(WireError):
            decode(name, version, whole[:size])


def test_it_reads_a_request_of_another_encoder() -> None:
    data = fetch_request([Wanted(("orders", 3), 17, 1000)], max_wait_ms=500, max_bytes=1 << 20)
    told = decode("FetchRequest", 12, data)
    assert told["isolation_level"] == 1
    assert (told["topics"][0]["topic"], told["topics"][0]["partitions"][0]["fetch_offset"]) == ("orders", 17)


def test_tagged_fields_are_written_only_where_they_say_something() -> None:
    plain = encode("FetchResponse", 16, {}, bytearray())
    node = {"node_id": 1, "host": "h", "port": 2}
    told = encode("FetchResponse", 16, {"node_endpoints": [node]}, bytearray())
    assert len(told) > len(plain)
    assert decode("FetchResponse", 16, bytes(told))["node_endpoints"] == [{**node, "rack": None}]


@pytest.mark.parametrize("count", [2**31 - 1, -2])
def test_a_hostile_count_costs_nothing(count: int) -> None:
    data = (5).to_bytes(4, "big") * 1 + count.to_bytes(4, "big", signed=True)
    with pytest.raises(WireError, match="topic_names"):
        decode("DeleteTopicsRequest", 1, data[4:] + data[:4])


def test_a_field_that_no_version_has_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="no such fields: errorcode"):
        encode("HeartbeatResponse", 4, {"errorcode": 3}, bytearray())


def test_null_arrays_are_not_empty_ones() -> None:
    everything = encode("MetadataRequest", 12, {"topics": None}, bytearray())
    assert decode("MetadataRequest", 12, bytes(everything))["topics"] is None
    assert (
        decode("MetadataRequest", 12, bytes(encode("MetadataRequest", 12, {}, bytearray())))["topics"] == []
    )
