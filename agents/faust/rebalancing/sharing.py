"""Shares out tables in a group whose members run different versions of some: by writers.

A writer is the transactional id, without its partition, under which a version of a table is written. Versions
that share it cannot be folded at once, so each of their partitions is one member's. Versions with writers of
their own are folded side by side: every partition is owned once in each, and two members may read one source
partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from faust.assignor.client_assignment import ClientAssignment
from faust.assignor.copartitioned_assignor import CopartitionedAssignor

Tables: TypeAlias = Mapping[str, list[str]]
"""Of each changelog that a member writes: the writer, then the sources."""


def are_alike(tables: Iterable[Tables]) -> bool:
    """Return whether all members run the same tables; True also if a member does not say: then Faust's own
    rule has to do.
    """
    found = [*tables]
    return not all(found) or all(each == found[0] for each in found)


def share_by_writer(
    tables: Mapping[str, Tables],
    before: Mapping[str, ClientAssignment],
    partitions: Callable[[str], int],
    replicas: int,
) -> dict[str, ClientAssignment]:
    """Return each member's part of the tables that members run and of their sources; *before* is what each
    had.

    Writers that the same members have, of as many partitions, are shared out together.
    """
    found = {member: ClientAssignment(actives={}, standbys={}) for member in tables}
    for (count, members), writers in sorted(_together(tables, partitions).items()):
        shares = {
            member: before[member].copartitioned_assignment(_changelogs(tables[member], writers))
            for member in members
        }
        CopartitionedAssignor(
            topics=writers, cluster_asgn=shares, num_partitions=count, replicas=replicas
        ).get_assignment()
        for member, share in shares.items():
            found[member].add_copartitioned_assignment(share)
    for member, share in found.items():
        _add_sources(share, tables[member])
    return found


def _together(
    tables: Mapping[str, Tables], partitions: Callable[[str], int]
) -> dict[tuple[int, tuple[str, ...]], set[str]]:
    """Return the writers that are shared out together, by their partitions and members."""
    members: dict[str, set[str]] = defaultdict(set)
    counts: dict[str, int] = {}
    for member, told in tables.items():
        for changelog, (writer, *_) in told.items():
            members[writer].add(member)
            counts[writer] = max(counts.get(writer, 0), partitions(changelog))
    found: dict[tuple[int, tuple[str, ...]], set[str]] = defaultdict(set)
    for writer, having in members.items():
        if counts[writer]:
            found[counts[writer], tuple(sorted(having))].add(writer)
    return found


def _changelogs(tables: Tables, writers: Iterable[str]) -> set[str]:
    wanted = {*writers}
    return {changelog for changelog, (writer, *_) in tables.items() if writer in wanted}


def _add_sources(share: ClientAssignment, tables: Tables) -> None:
    """Give a member each source partition of which it owns a table."""
    read: dict[str, set[int]] = defaultdict(set)
    for changelog, (_, *sources) in tables.items():
        for source in sources:
            read[source].update(share.actives.get(changelog, ()))
    for source, numbers in read.items():
        share.actives[source], share.standbys[source] = sorted(numbers), []
