"""The topics of one application on a real cluster: create those that are missing, check those that exist."""

from __future__ import annotations

import re
from contextlib import suppress

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.chain_state import chain_findings
from holdfast.clients.topics.checks import check, check_processors
from holdfast.clients.topics.plan import plan
from holdfast.clients.topics.resetting import under_way
from holdfast.clients.topics.schemas import plan_schemas, register_schemas, schema_findings
from holdfast.clients.topics.specs import beside_names, specs_beside, specs_for, topic_names
from holdfast.clients.topics.types import (
    ClusterTopics,
    Processors,
    Severity,
    TopicChange,
    TopicFinding,
    TopicRole,
    TopicState,
)
from holdfast.config import Settings
from holdfast.core.engine.declared.chains import require_chains
from holdfast.errors import ChainError, HoldfastError, TopicError


def create_topics(
    settings: Settings,
    processors: Processors,
    *,
    partitions: int | None = None,
    alter: bool = False,
    claims: bool = False,
    admin: Admin | None = None,
) -> list[TopicChange]:
    """Create the topics of an application that are missing, wait until they can be used, and return the
    changes.

    With *claims* the coordination topic is one of them. With *alter* holdfast's other topics are set right as
    well, those that this principal may see. Schemas that folds write with are registered first: SchemaError
    where one does not fit, Later where their registry does not answer.
    """
    admin = admin or Admin(settings)
    require_no_reset(settings, admin)
    actions = plan_topics(
        settings, processors, partitions=partitions, alter=alter, claims=claims, admin=admin
    )
    register_schemas(settings, processors)
    admin.apply(actions)
    return actions


def require_no_reset(settings: Settings, admin: Admin) -> None:
    """Raise TopicError while a reset of the application is under way."""
    if found := _reset_findings(settings, admin):
        raise TopicError("; ".join(map(str, found)))


def _reset_findings(settings: Settings, admin: Admin) -> list[TopicFinding]:
    return [under_way(settings)] if settings.reset_topic in admin.partition_counts() else []


def plan_topics(
    settings: Settings,
    processors: Processors,
    *,
    partitions: int | None,
    alter: bool,
    claims: bool = False,
    admin: Admin,
) -> list[TopicChange]:
    """Return the changes that `create_topics` would make."""
    cluster = admin.cluster([*topic_names(settings, processors), settings.coordination_topic])
    specs = specs_for(settings, processors, cluster, partitions=partitions, claims=claims)
    actions = plan(specs, cluster, alter=alter)
    actions += plan_schemas(settings, processors)
    if alter:
        beside = _beside(settings, processors, admin)
        actions += plan(specs_beside(settings, beside), beside, alter=True)
    return actions


def kept_counts(
    settings: Settings, processors: Processors, partitions: int, *, admin: Admin
) -> dict[str, int]:
    """Return the existing topics that *partitions* would be for, if they did not exist, and that have
    another count, with that.
    """
    cluster = admin.cluster(topic_names(settings, processors))
    counted = (TopicRole.SOURCE, TopicRole.COORDINATION, TopicRole.EMIT, TopicRole.GLOBAL)
    return {
        spec.name: count
        for spec in specs_for(settings, processors, cluster)
        if spec.role in counted and (count := cluster.partitions(spec.name)) not in (None, partitions)
    }


def orphans(settings: Settings, processors: Processors, *, admin: Admin) -> list[str]:
    """Return the changelogs that are named as if they were of a table of this application, and of which it
    declares no processor: a table that was renamed or given up leaves its own changelog.
    """
    named = re.compile(rf"{re.escape(settings.app)}-(.+)\.v[0-9]+-changelog")
    declared = {processor.name for processor in processors}
    found = {name: named.fullmatch(name) for name in admin.partition_counts()}
    return sorted(
        name
        for name, match in found.items()
        if match and not any(match[1] == each or match[1].startswith(f"{each}.") for each in declared)
    )


def _beside(settings: Settings, processors: Processors, admin: Admin) -> ClusterTopics:
    """Return holdfast's own topics that are not the application's, as far as this principal may look at
    them.
    """
    known = set(topic_names(settings, processors)) - {
        f"{settings.producers_topic}.answers"
    }  # a registry's emits are ours as well
    topics: dict[str, TopicState] = {}
    for name in beside_names(settings):
        if name not in known:
            with suppress(HoldfastError):
                topics |= admin.cluster([name]).topics
    return ClusterTopics(brokers=(), topics=topics)


def check_topics(
    settings: Settings, processors: Processors, *, beside: bool = False, admin: Admin | None = None
) -> list[TopicFinding]:
    """Return the faults of the topics of an application, errors first; with *beside* also of holdfast's other
    topics.
    """
    admin = admin or Admin(settings)
    cluster = admin.cluster(topic_names(settings, processors))
    findings = [
        *_reset_findings(settings, admin),
        *check_processors(settings, processors),
        *check(specs_for(settings, processors, cluster), cluster),
    ]
    findings += chain_findings(settings, processors, cluster, admin)
    findings += schema_findings(settings, processors)
    if beside:
        others = _beside(settings, processors, admin)
        findings += check(specs_beside(settings, others), others)
    return findings


def require_topics(
    settings: Settings, processors: Processors, *, admin: Admin | None = None
) -> list[TopicFinding]:
    """Return the warnings about the topics of an application; errors are one TopicError, so that a worker
    does not start on them; ChainError where versions do not fit each other.
    """
    require_chains(processors)
    findings = check_topics(settings, processors, admin=admin)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        hidden = (
            "; a topic that is there is hidden from a user without rights: see `holdfast acls`"
            if settings.sasl() is not None
            else ""
        )
        kind = ChainError if all(finding.chain for finding in errors) else TopicError
        raise kind("; ".join(map(str, errors)) + hidden)
    return findings
