"""The part of an assignment about other members: the owners of partitions, of all of them while they are few.

The broker keeps a group as one record, all members with their assignments. With everything, each of W members
gets P partitions, and the record grows with W x P. So where it would grow large, a member gets the tables'
partitions that it has itself, as owner or standby; the workers topic has the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from faust.assignor.client_assignment import ClientAssignment

Hosts: TypeAlias = MutableMapping[str, MutableMapping[str, list[int]]]
"""Of each member's URL the partitions it owns, by topic; mutable because Faust says so."""

LIMIT_TOLD_BYTES = 400_000
"""The limit for all members together; a broker takes a record of 1,048,588 bytes, and members' own data are
in it too.
"""


class NearHosts:
    """Of *hosts* what each member must know: the whole of topics that are not *left_out*, and of those the
    numbers it has.
    """

    def __init__(self, hosts: Hosts, left_out: Callable[[str], bool]) -> None:
        self._whole = {
            url: kept
            for url, topics in hosts.items()
            if (kept := {topic: numbers for topic, numbers in topics.items() if not left_out(topic)})
        }
        self._owners: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for url, topics in hosts.items():
            for topic in filter(left_out, topics):
                for number in topics[topic]:
                    self._owners[number].append((url, topic))

    def of(self, numbers: Iterable[int]) -> Hosts:
        """Return the owners for a member that has these *numbers*.

        >>> hosts = NearHosts({"http://a": {"t-changelog": [0, 2]}, "http://b": {"t-changelog": [1], "other": [0]}}, lambda topic: topic != "other")
        >>> hosts.of([1, 2])
        {'http://b': {'other': [0], 't-changelog': [1]}, 'http://a': {'t-changelog': [2]}}
        """  # noqa: E501
        found: Hosts = {url: dict(topics) for url, topics in self._whole.items()}
        for number in sorted(numbers):
            for url, topic in self._owners.get(number, ()):
                found.setdefault(url, {}).setdefault(topic, []).append(number)
        return found


def numbers_of(assignment: ClientAssignment, topics: Callable[[str], bool]) -> set[int]:
    """Return the numbers of the partitions that a member has of *topics*, as owner or standby."""
    given: Collection[Mapping[str, list[int]]] = (assignment.actives, assignment.standbys)
    return {number for part in given for topic in filter(topics, part) for number in part[topic]}
