"""A worker's needs of the cluster: brokers, enough of them, topics as they must be, rights, and clocks that
agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from holdfast.cli.doctor.diagnosis import Diagnosis, Fitness, examined
from holdfast.cli.options.application import Application
from holdfast.cli.waiting_origins import WaitingPartition, follows_time, waiting_partitions
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import check_topics
from holdfast.clients.topics.grants import worker_grants
from holdfast.clients.topics.types import ClusterTopics, Severity
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.console.watching.findings import WAIT_FOR_ORIGIN
from holdfast.core.kafka.grants import Grant, Pattern, Resource

DEADLINE_S = 10.0
"""The limit for an answer of the cluster."""
SKEW_MS = 1_000
"""The lead of a broker's clock from which on it is reported."""


def cluster(
    settings: Settings,
    application: Application | None,
    *,
    admin: Admin | None = None,
    clock: Clock = system_clock,
) -> Iterator[Diagnosis]:
    """Yield the diagnoses of the cluster that the settings name, and of the topics of *application*."""
    admin = admin or Admin(settings, timeout_s=DEADLINE_S)
    found = list(examined("broker", lambda: brokers(settings, admin.cluster([]))))
    yield from found
    if found[0].fitness is Fitness.ERROR:
        return  # without a broker there are no further checks
    if application is not None:
        yield from examined("topics", lambda: topics(application, admin))
        yield from examined("rights", lambda: rights(application, admin))
    yield from examined("clocks", lambda: clocks(settings, admin, clock))
    if application is not None and follows_time(application):
        yield from examined("event time", lambda: event_time(waiting_partitions(application, DEADLINE_S)))


def brokers(settings: Settings, seen: ClusterTopics) -> Iterator[Diagnosis]:
    """Yield how many brokers there are, and whether they are enough for the copies that are asked for."""
    count = len(seen.brokers)
    yield Diagnosis(
        check="broker", fitness=Fitness.OK, found=f"{settings.bootstrap_servers}: {count} broker(s)"
    )
    if settings.replication_factor > count:
        yield Diagnosis(
            check="replication",
            fitness=Fitness.ERROR,
            found=f"replication_factor is {settings.replication_factor}, and there are {count} broker(s)",
            cure=f"--set replication_factor={count}, or more brokers",
        )


def topics(application: Application, admin: Admin) -> Iterator[Diagnosis]:
    """Yield the faults of the topics of the application."""
    findings = check_topics(application.settings, application.processors, admin=admin)
    for finding in findings:
        fitness = Fitness.ERROR if finding.severity is Severity.ERROR else Fitness.WARNING
        yield Diagnosis(
            check=f"topic {finding.topic}", fitness=fitness, found=finding.message, cure=finding.remedy
        )
    if not findings:
        yield Diagnosis(
            check="topics", fitness=Fitness.OK, found="each exists, with the settings that it needs"
        )


def rights(application: Application, admin: Admin) -> Iterator[Diagnosis]:
    """Yield what this principal may not do with topics that a worker must do with them."""
    needed = [
        grant
        for grant in worker_grants(application.settings, application.processors)
        if grant.resource is Resource.TOPIC and grant.pattern is Pattern.LITERAL
    ]
    lacking = missing(needed, admin.allowed({grant.name for grant in needed}))
    for grant in lacking:
        yield Diagnosis(
            check=f"right {grant.operation}",
            fitness=Fitness.ERROR,
            found=f"not allowed on topic {grant.name}, where {grant.why}",
            cure="`holdfast acls worker --principal User:NAME` prints what kafka-acls is to grant",
        )
    if not lacking:
        yield Diagnosis(check="rights", fitness=Fitness.OK, found="all that a worker needs on these topics")


def event_time(waiting: Sequence[WaitingPartition]) -> Iterator[Diagnosis]:
    """Yield the origins that windows and joins of the running workers wait for."""
    for each in waiting:
        yield Diagnosis(
            check="event time",
            fitness=Fitness.WARNING if each.is_long else Fitness.OK,
            found=each.told,
            cure=WAIT_FOR_ORIGIN if each.is_long else "",
        )
    if not waiting:
        yield Diagnosis(
            check="event time", fitness=Fitness.OK, found="no windows or joins wait for an origin"
        )


def missing(needed: list[Grant], allowed: Mapping[str, Collection[str]]) -> list[Grant]:
    """Return the grants whose topic is known and whose operation is not *allowed* on it."""
    return [grant for grant in needed if grant.name in allowed and grant.operation not in allowed[grant.name]]


def clocks(settings: Settings, admin: Admin, clock: Clock) -> Iterator[Diagnosis]:
    """Yield whether a broker has given a record a time that has not come yet here: one of the two clocks is
    wrong.
    """
    newest_ms = admin.newest_ms(settings.workers_topic, 0)
    if newest_ms is None:
        yield Diagnosis(
            check="clocks",
            fitness=Fitness.ABSENT,
            found="no worker has announced itself yet, so no broker's time is known",
        )
        return
    ahead_ms = newest_ms - clock.now_ms()
    if ahead_ms > SKEW_MS:
        yield Diagnosis(
            check="clocks",
            fitness=Fitness.WARNING,
            found=f"the broker's clock is {ahead_ms / 1000:.1f} s or more ahead of this machine's",
            cure="let NTP set both; ticks and claims rest on the brokers' clocks",
        )
        return
    yield Diagnosis(check="clocks", fitness=Fitness.OK, found="no broker is ahead of this machine's")
