"""Tables are shared out by their writers where members run different versions."""

from __future__ import annotations

from collections.abc import Mapping

from faust.assignor.client_assignment import ClientAssignment

from holdfast.agents.faust.rebalancing.sharing import Tables, are_alike, share_by_writer

PARTITIONS = 6
OLD: Tables = {"a.v1": ["a", "orders"], "b.v1": ["b", "orders", "customers"]}
BESIDE: Tables = {"a.v2": ["a.v2", "orders"], "b.v1": ["b", "orders", "customers"]}
INSTEAD: Tables = {"a.v2": ["a", "orders"], "b.v1": ["b", "orders", "customers"]}


def shared(
    tables: Mapping[str, Tables], before: Mapping[str, ClientAssignment] | None = None
) -> dict[str, ClientAssignment]:
    nothing = {member: ClientAssignment(actives={}, standbys={}) for member in tables}
    return share_by_writer(tables, before or nothing, lambda topic: PARTITIONS, 1)


def owned(found: Mapping[str, ClientAssignment], *changelogs: str) -> list[int]:
    """Return the partitions of some changelogs that are anybody's to write."""
    return sorted(
        at for each in found.values() for changelog in changelogs for at in each.actives.get(changelog, ())
    )


def test_members_that_run_the_same_tables_are_left_to_faust() -> None:
    assert are_alike([OLD, OLD])
    assert not are_alike([OLD, BESIDE])
    assert are_alike([OLD, BESIDE, {}]), "one of an older release does not tell"


def test_each_partition_of_each_writer_has_one_owner_and_sources_follow() -> None:
    found = shared({"old-1": OLD, "old-2": OLD, "new": BESIDE})
    every = [*range(PARTITIONS)]
    assert owned(found, "a.v1") == owned(found, "a.v2") == owned(found, "b.v1") == every
    assert sorted(found["new"].actives["a.v2"]) == every, "who alone has a version owns all of it"
    for share in found.values():
        tables = [set(share.actives.get(name, ())) for name in ("a.v1", "a.v2", "b.v1")]
        assert set(share.actives["orders"]) == set.union(*tables)
        assert set(share.actives["customers"]) == tables[2], "of b alone"
        assert share.standbys["orders"] == []


def test_versions_of_one_writer_have_one_owner_together() -> None:
    found = shared({"old-1": OLD, "old-2": OLD, "new": INSTEAD})
    assert owned(found, "a.v1", "a.v2") == [*range(PARTITIONS)]
    for member, share in found.items():
        strange = "a.v1" if member == "new" else "a.v2"
        assert strange not in share.actives, "nobody is given a version that it does not run"


def test_nothing_moves_when_it_is_shared_out_again() -> None:
    members = {"old-1": OLD, "old-2": OLD, "new": BESIDE}
    first = shared(members)
    again = shared(members, first)
    for member, share in first.items():
        assert {name: sorted(numbers) for name, numbers in again[member].actives.items()} == {
            name: sorted(numbers) for name, numbers in share.actives.items()
        }
