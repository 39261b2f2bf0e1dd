from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.engine.declared.partitioners import by_key, murmur2
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import ConfigError
from tests.support.places import TESTDATA

VECTORS = json.loads((TESTDATA / "murmur2_partition.json").read_text())


@pytest.mark.parametrize(
    "vector", [*VECTORS["vectors"], *VECTORS["kafka_utils_test"]], ids=lambda vector: vector["key"]
)
def test_murmur2_is_kafkas(vector: dict[str, object]) -> None:
    assert murmur2(str(vector["key"]).encode()) == vector["murmur2"]


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["key"])
def test_a_key_lives_where_java_producers_put_it(vector: dict[str, dict[str, int]]) -> None:
    """O6: of 8 partitions key-0 has 1 and the text 1 has 7, as Faust chooses."""
    for partitions, partition in vector["murmur2_partition"].items():
        assert by_key(str(vector["key"]), int(partitions)) == partition


def java_murmur2(data: bytes) -> int:
    """Kafka's Utils.murmur2 line by line, on Java's wrapping ints, as the oracle."""

    def wrap(value: int) -> int:
        return (value + (1 << 31)) % (1 << 32) - (1 << 31)

    def shift(value: int, by: int) -> int:
        return (value % (1 << 32)) >> by

    m, r = 0x5BD1E995, 24
    h = wrap(wrap(0x9747B28C) ^ len(data))
    for i in range(len(data) // 4):
        i4 = i * 4
        k = wrap(data[i4] + (data[i4 + 1] << 8) + (data[i4 + 2] << 16) + (data[i4 + 3] << 24))
        k = wrap(k * m)
        k ^= shift(k, r)
        k = wrap(wrap(k) * m)
        h = wrap(h * m)
        h = wrap(h ^ k)
    left = len(data) & ~3
    if len(data) % 4 == 3:
        h = wrap(h ^ data[left + 2] << 16)
    if len(data) % 4 >= 2:
        h = wrap(h ^ data[left + 1] << 8)
    if len(data) % 4 >= 1:
        h = wrap(wrap(h ^ data[left]) * m)
    h = wrap(h ^ shift(h, 13))
    h = wrap(h * m)
    return wrap(h ^ shift(h, 15))


@given(st.binary(max_size=40))
def test_murmur2_agrees_with_the_java_text_on_any_bytes(data: bytes) -> None:
    assert murmur2(data) == java_murmur2(data)


@given(st.text(), st.integers(1, 1000))
def test_by_key_is_what_java_makes_of_the_hash(key: str, partitions: int) -> None:
    assert by_key(key, partitions) == (java_murmur2(key.encode()) & 0x7FFFFFFF) % partitions < partitions


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        by_key("a", 0)


def test_by_key_routes_a_processor() -> None:
    routed: Processor[bytes, int] = Processor(
        name="t", source="s", decode=bytes, fold=lambda *_: None, row=int, route=by_key
    )
    assert routed.route is not None
    assert routed.route("key-2", 8) == 6
