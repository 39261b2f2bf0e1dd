"""Partitioners: the partition that Kafka's Java clients choose for a key."""

from __future__ import annotations

from struct import unpack_from

from holdfast.errors import ConfigError

_M = 0x5BD1E995
_SEED = 0x9747B28C
_U32 = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return Kafka's murmur2 of *key* as the signed 32 bit number that Java has.

    >>> murmur2(b"foobar")
    -790332482
    """
    length = len(key)
    h = _SEED ^ length
    whole = length & ~3
    for word in unpack_from(f"<{whole >> 2}I", key):
        k = word * _M & _U32
        k = (k ^ k >> 24) * _M & _U32
        h = h * _M & _U32 ^ k
    if whole < length:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _U32
    h = (h ^ h >> 13) * _M & _U32
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def by_key(key: str, partitions: int) -> int:
    """Return the partition of *key* among *partitions*, as the Java default partitioner (and librdkafka's
    murmur2) chooses it.

    A processor whose rows have the keys of its records takes it as its `route`.

    >>> [by_key(key, 8) for key in ("key-0", "key-1", "key-2")]
    [1, 0, 6]
    """
    return of_key(key.encode(), partitions)


def of_key(key: bytes, partitions: int) -> int:
    """Return `by_key` of a key as it is in the record."""
    if partitions < 1:
        raise ConfigError(f"{partitions} partitions: a topic has at least one")
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def goharvest_cell(key: bytes, cells: int) -> int:
    """Return the number of the reaper's send cell that publishes *key*, by FNV-1a of 32 bits. Use it to
    find the cause of a key's delay in the reaper's log.

    >>> goharvest_cell(b"key-1", 8), goharvest_cell(b"", 8), goharvest_cell(b"key-1", 1)
    (6, 5, 0)
    """
    value = 0x811C9DC5
    for byte in key:
        value = (value ^ byte) * 0x01000193 & _U32
    return value % cells
