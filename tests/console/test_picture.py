"""The console's picture from workers' announcements and reports: each state of a partition and of a worker,
and the text about it.
"""

from __future__ import annotations

from holdfast.clients.groups.records import GroupDescription, GroupKind
from holdfast.console.watching.findings import Urgency, findings
from holdfast.console.watching.history import STALLED_S, History, positions_of
from holdfast.console.watching.picture import PartitionHealth, Picture, WorkerState
from holdfast.console.watching.reports import ChangelogReport, Silence
from tests.console.pictures import claims, held, picture, report, url

REFUSED = Silence("cannot be reached: Connection refused")


def states(seen: Picture) -> list[str]:
    return [str(each.state) for table in seen.tables for each in table.partitions]


def told(seen: Picture, *groups: GroupDescription) -> list[tuple[Urgency, str]]:
    return [(each.urgency, each.what) for each in findings(seen, groups)]


def test_a_healthy_application_has_no_findings() -> None:
    seen = picture([claims(1, 2, active=[0, 1])], {url(1): report(1, held(0), held(1), release="0.1.0")})
    (worker,) = seen.workers
    assert (worker.state, worker.active, worker.release) == (WorkerState.READY, 2, "0.1.0")
    assert states(seen) == ["served", "served"]
    assert told(seen) == []


def test_the_partitions_of_a_worker_that_was_killed_are_critical_until_another_has_them() -> None:
    dead = claims(1, 2, active=[0, 1])
    seen = picture([dead], {url(1): REFUSED})
    assert states(seen) == ["owner is silent"] * 2
    assert seen.workers[0].state is WorkerState.SILENT
    assert told(seen) == [
        (Urgency.CRITICAL, f"Worker {url(1)} cannot be reached: Connection refused"),
        (Urgency.CRITICAL, "All 2 partitions of totals v1 have an owner that does not answer"),
    ]
    heir = claims(2, 2, generation=2, active=[0, 1])
    after = picture([dead, heir], {url(1): REFUSED, url(2): report(2, held(0), held(1))})
    assert states(after) == ["served", "served"]
    assert [each.state for each in after.workers] == [WorkerState.GONE, WorkerState.READY]
    assert told(after) == []


def test_a_partition_that_another_restores_shows_its_progress() -> None:
    reading = held(0, "standby", serving=False, changelog=ChangelogReport(34, 100))
    seen = picture([claims(1, 1, active=[0]), claims(2, 1)], {url(1): REFUSED, url(2): report(2, reading)})
    (line,) = seen.tables[0].partitions
    assert (line.state, line.restored) == (PartitionHealth.RESTORING, 0.34)
    assert (Urgency.WARNING, "All 1 partitions of totals v1 are being restored") in told(seen)


def test_a_partition_that_is_stalled_or_unowned_is_critical() -> None:
    waits = held(0, standing="a record cannot be read")
    seen = picture([claims(1, 3, active=[0])], {url(1): report(1, waits, unready="a record cannot be read")})
    assert states(seen) == ["stands still", "not served", "not served"]
    assert [urgency for urgency, _ in told(seen)] == [Urgency.CRITICAL, Urgency.CRITICAL, Urgency.WARNING]
    assert "2 of 3 partitions of totals v1 (1, 2) are served by nobody" in [what for _, what in told(seen)]


def test_an_owner_that_has_given_up_a_partition_does_not_serve_it() -> None:
    seen = picture([claims(1, 1, active=[0])], {url(1): report(1)})
    assert states(seen) == ["not served"]


def test_standbys_report_their_age_and_a_worker_of_an_older_release_reports_less() -> None:
    copy = held(0, "standby", as_of_offset=7, behind=3, age_ms=250)
    seen = picture(
        [claims(1, 1, active=[0]), claims(2, 1, standby=[0]), claims(3, 1, standby=[0])],
        {url(1): report(1, held(0)), url(2): report(2, copy), url(3): REFUSED},
    )
    (line,) = seen.tables[0].partitions
    assert [(each.url, each.behind, each.age_ms) for each in line.standbys] == [
        (url(3), None, None),
        (url(2), 3, 250),
    ]
    assert [each.standby for each in seen.workers] == [0, 1, 0]


def test_a_fault_of_a_version_that_is_not_read_is_only_noted() -> None:
    seen = picture(
        [claims(1, 1, active=[0]), claims(2, 1, version=2, active=[0], building=[0])],
        {url(1): report(1, held(0)), url(2): REFUSED},
    )
    assert [(table.version, table.current) for table in seen.tables] == [(1, True), (2, False)]
    assert (Urgency.NOTE, "All 1 partitions of totals v2 have an owner that does not answer") in told(seen)


def test_positions_that_do_not_move_though_records_wait_are_stalled() -> None:
    history, announced = History(), [claims(1, 1, active=[0])]

    def look(now_s: float, offset: int, behind: int) -> str:
        said = {url(1): report(1, held(0, as_of_offset=offset, behind=behind))}
        seen = picture(announced, said, stalled=history.stalled(now_s))
        history.learn(positions_of(seen), now_s=now_s, at_s=now_s)
        return states(picture(announced, said, stalled=history.stalled(now_s)))[0]

    assert look(0.0, 5, 2) == "served"
    assert look(STALLED_S, 5, 2) == "stalled"
    assert look(STALLED_S + 1, 6, 2) == "served"
    assert look(2 * STALLED_S + 1, 6, 0) == "served"  # all is folded: there is nothing to move for
    assert look(3 * STALLED_S, 6, 0) == "served"


def claim_group(
    name: str, state: str = "Stable", held: int = 8, resets: tuple[str, ...] = ()
) -> GroupDescription:
    return GroupDescription(
        group=name,
        kind=GroupKind.CLAIM,
        state=state,
        members=2,
        partitions_held=held,
        partitions=8,
        resets=resets,
    )


def test_groups_that_wait_are_findings() -> None:
    seen = picture([claims(1, 1, active=[0])], {url(1): report(1, held(0))})
    groups = (
        claim_group("a"),
        claim_group("b", "Paused", held=0),
        claim_group("c", "Resetting", resets=("reset-1",)),
        claim_group("d", held=5),
    )
    assert told(seen, *groups) == [
        (Urgency.WARNING, "Claim group b is paused"),
        (Urgency.WARNING, "Claim group c is being reset (reset-1)"),
        (Urgency.WARNING, "Claim group d works on 5 of 8 partitions: 3 are held by nobody"),
    ]


def test_that_kafka_is_away_and_that_no_worker_runs_comes_first() -> None:
    seen = picture([], {}, trouble="Connection refused")
    assert [what for _, what in told(seen)] == [
        "Kafka does not answer the console: Connection refused",
        "No worker of shop runs",
    ]
