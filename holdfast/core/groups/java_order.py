"""Java's String.hashCode, String.compareTo and HashMap order, which decide in Kafka on which partition a
group is stored, and which member comes first in an assignor.

Kafka's sticky assignors walk over hash maps. The order they meet their members in is not by name, and it
decides who keeps a partition when there are too many claimants: an assignor with the same rules and another
order gives other results.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from holdfast.errors import ConfigError

K = TypeVar("K", bound=Hashable)

_U32 = 0xFFFFFFFF
TABLE_SIZE = 16
TREE_CHAIN = 8
TREE_TABLE_SIZE = 64
OFFSETS_PARTITIONS = 50


def string_hash(text: str) -> int:
    """Return `text.hashCode()` of Java: 31-polynomial over UTF-16 code units, signed 32 bit.

    >>> string_hash("group"), string_hash("neli_test.group"), string_hash("\\U0001f600")
    (98629247, -404025906, 1772899)
    """
    code = 0
    if text.isascii():
        for unit in text.encode():
            code = (31 * code + unit) & _U32
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            code = (31 * code + (units[at] << 8 | units[at + 1])) & _U32
    return code - (1 << 32) if code >> 31 else code


def partition_hash(topic_hash: int, partition: int) -> int:
    """Return `TopicPartition.hashCode()` for a topic whose name hashes to *topic_hash*."""
    return (31 * (31 + partition) + topic_hash) & _U32


def string_order(text: str) -> bytes:
    """Return a key that sorts as `String.compareTo`: by UTF-16 code units, which differs from Python's order
    beyond U+FFFF.

    >>> sorted(["\\uff5e", "\\U0001f600"], key=string_order) == ["\\U0001f600", "\\uff5e"]
    True
    """
    return text.encode("utf-16-be", "surrogatepass")


def coordinator_partition(group_id: str, partitions: int = OFFSETS_PARTITIONS) -> int:
    """Return the partition of `__consumer_offsets` whose leader coordinates *group_id*
    (PROTOCOL.md#where-a-group-lives).

    The rule of the transaction coordinator too, with the transactional id. `abs` as Kafka's: of the smallest
    integer it is 0.

    >>> [coordinator_partition(group) for group in ("test-group", "neli_test.group", "")]
    [12, 6, 0]
    """
    if partitions < 1:
        raise ConfigError(f"{partitions} partitions: a topic has at least one")
    code = string_hash(group_id)
    return 0 if code == -(1 << 31) else abs(code) % partitions


class HashOrder(Generic[K]):
    """Keys in the order a `java.util.HashMap` grown from its default size iterates over them.

    Chains keep the order of insertion and a table never shrinks, so removed keys still affect the order. A
    chain of more than eight in a table of 64 or more becomes a tree in Java, whose order is that of insertion
    but for its root: not imitated, and met only by ids made to collide.
    """

    __slots__ = ("_chains", "_count")

    def __init__(self, keys: Iterable[tuple[K, int]] = ()) -> None:
        self._chains: list[list[tuple[int, K]]] = [[] for _ in range(TABLE_SIZE)]
        self._count = 0
        for key, code in keys:
            self.add(key, code)

    def add(self, key: K, code: int) -> None:
        """Add *key*, whose Java hash is *code*; the caller adds no key twice."""
        code &= _U32
        code ^= code >> 16
        chain = self._chains[code & len(self._chains) - 1]
        chain.append((code, key))
        self._count += 1
        if len(chain) > TREE_CHAIN and len(self._chains) < TREE_TABLE_SIZE:
            self._grow()
        if 4 * self._count > 3 * len(self._chains):
            self._grow()

    def remove(self, key: K, code: int) -> None:
        """Remove *key*; KeyError when it is not there."""
        code &= _U32
        code ^= code >> 16
        try:
            self._chains[code & len(self._chains) - 1].remove((code, key))
        except ValueError:
            raise KeyError(key) from None
        self._count -= 1

    def _grow(self) -> None:
        size = 2 * len(self._chains)
        entries = [entry for chain in self._chains for entry in chain]
        self._chains = [[] for _ in range(size)]
        for entry in entries:
            self._chains[entry[0] & size - 1].append(entry)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        return (key for chain in self._chains for _, key in chain)


def hash_order(texts: Iterable[str]) -> list[str]:
    """Return distinct *texts* in the order of a HashMap they were put into one after another.

    >>> hash_order(["consumer1", "consumer2", "consumer3"]), hash_order(["C1", "C2", "C3"])
    (['consumer3', 'consumer2', 'consumer1'], ['C3', 'C1', 'C2'])
    """
    return list(HashOrder((text, string_hash(text)) for text in texts))
