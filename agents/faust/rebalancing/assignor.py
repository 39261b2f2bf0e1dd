"""Faust's assignor for members that return under another address, and for groups of which some members run
other versions of a table.

Overrides faust-streaming 0.15.3's, which tests/agents/faust/test_contract.py holds us to.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any, cast

from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from faust.assignor.client_assignment import ClientAssignment, ClientMetadata
from faust.assignor.cluster_assignment import ClusterAssignment
from faust.assignor.copartitioned_assignor import CopartitionedAssignor
from faust.assignor.partition_assignor import PartitionAssignor
from faust.types import TP
from faust.types.app import AppT

from holdfast.agents.faust.rebalancing import telling
from holdfast.agents.faust.rebalancing.namesakes import folded_differently, marked, namesakes
from holdfast.agents.faust.rebalancing.sharing import are_alike, share_by_writer

logger = logging.getLogger(__name__)


BY_WRITER = "holdfast:by-writer"
"""A topic group that is none: if an assignment has it, the owner of a table is the member that gets its
changelog.
"""


class TellingMetadata(ClientMetadata, serializer="json", include_metadata=False, namespace="@ClientMetadata"):
    """A member's message to the leader, with the tables that it runs."""

    tables: Mapping[str, list[str]] = cast(Mapping[str, list[str]], None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tables is None:
            self.tables = {}


class Changelogs:
    """Every changelog of application *app*: those of its processors in whatever version, which some other
    member alone may know, and the *own* ones of this member.

    >>> known = Changelogs("shop", lambda: {"shop-visits-changelog"})
    >>> [topic in known for topic in ("shop-totals.v2-changelog", "shop-visits-changelog", "orders")]
    [True, True, False]
    """

    def __init__(self, app: str, own: Callable[[], Collection[str]]) -> None:
        self._name, self._own = re.compile(re.escape(app) + r"-.+\.v[0-9]+-changelog"), own

    def __contains__(self, topic: str) -> bool:
        return self.is_processors(topic) or topic in self._own()

    def is_processors(self, topic: str) -> bool:
        """Return whether *topic* is the changelog of a processor, in whatever version."""
        return self._name.fullmatch(topic) is not None


class _KnownTables:
    """The assignor's view of Faust's table manager: here the leader counts every changelog as one."""

    def __init__(self, app: AppT) -> None:
        self._app = app
        self.changelog_topics = Changelogs(str(app.conf.id), lambda: app.tables.changelog_topics)

    @property
    def data(self) -> Any:
        return self._app.tables.data


class ReturningAssignor(PartitionAssignor):
    """Takes an assignment made for this member's old URL as its own.

    A static member that returns within its session gets its old assignment as it was made, and may have
    another address by now: a pod's, or another `web_port`. Stock asserts that it has not.
    """

    moved = False
    """True if the last assignment was the first to name this URL of before: one more assignment gives
    everyone the one of today.
    """
    known_as = ""

    def __init__(self, app: AppT, replicas: int = 0) -> None:
        super().__init__(app, replicas)
        # A leader that takes the changelogs of another version for ordinary topics leaves out its standbys,
        # and the member that finds them missing refuses the assignment and ends.
        self._table_manager = cast(Any, _KnownTables(app))
        self._said: set[str] = set()

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        found = self._metadata
        told = TellingMetadata(**{**found.asdict(), "assignment": found.assignment, "tables": self._tables()})
        return ConsumerProtocolMemberMetadata(self.version, [*topics], told.dumps())

    def _tables(self) -> dict[str, list[str]]:
        """Return the tables that this member runs, as it sends them to the leader; none where tables or
        agents of Faust's own must have a processor's sources to themselves.
        """
        app = cast(Any, self.app)
        name, processors = str(app.conf.id), app.processors.values()
        folded = {topic for each in processors for topic in each.topics}
        read = {
            topic
            for agent in app.agents.values()
            if not agent.name.startswith("holdfast.")
            for topic in getattr(agent.channel, "topics", None) or ()
        }
        if folded & read or app.tables.data.keys() - {each.table for each in processors}:
            return {}
        return {each.changelog(name): [each.writer(name), *each.topics] for each in processors}

    def _perform_assignment(self, cluster: Any, member_metadata: Any) -> Any:
        clients = {
            member: cast(TellingMetadata, TellingMetadata.loads(each.user_data))
            for member, each in member_metadata.items()
        }
        tables = {member: client.tables for member, client in clients.items()}
        if are_alike(tables.values()):
            return super()._perform_assignment(cluster, member_metadata)
        self._update_member_urls(clients)
        found = share_by_writer(
            tables,
            {member: client.assignment for member, client in clients.items()},
            lambda topic: len(cluster.partitions_for_topic(topic) or ()),
            self.replicas,
        )
        subscriptions = {member: each.subscription for member, each in member_metadata.items()}
        self._share_others(cluster, subscriptions, clients, found)
        groups = dict.fromkeys({topic for each in found.values() for topic in each.actives}, 0)
        groups |= marked(folded_differently(tables.values()))
        return self._protocol_assignments(
            found,
            self._get_changelog_distribution(found),
            self._get_external_topic_distribution(found),
            {**groups, BY_WRITER: 1},
        )

    def _protocol_assignments(
        self,
        assignments: MutableMapping[str, ClientAssignment],
        cl_distribution: telling.Hosts,
        tp_distribution: telling.Hosts,
        topic_groups: Mapping[str, int],
    ) -> Any:
        """Return each member's message: its part, and all owners as far as that is not too much for the
        broker's record of the group.
        """
        whole = ClientMetadata(
            assignment=ClientAssignment(actives={}, standbys={}),
            url="",
            changelog_distribution=cl_distribution,
            external_topic_distribution=tp_distribution,
            topic_groups=topic_groups,
        )
        tell = super()._protocol_assignments
        if len(self._compress(whole.dumps())) * len(assignments) <= telling.LIMIT_TOLD_BYTES:
            return tell(assignments, cl_distribution, tp_distribution, topic_groups)
        is_processors = cast(Changelogs, self._table_manager.changelog_topics).is_processors
        near = telling.NearHosts(cl_distribution, is_processors)
        sources = telling.NearHosts(tp_distribution, self._is_folded)
        told: dict[str, Any] = {}
        for member, given in assignments.items():
            hosts = near.of(telling.numbers_of(given, is_processors))
            told |= tell({member: given}, hosts, sources.of(()), topic_groups)
        return told

    def _is_folded(self, topic: str) -> bool:
        return any(topic in each.topics for each in cast(Any, self.app).processors.values())

    @property
    def shared_topics(self) -> Collection[str]:
        """Return the topics whose partitions the last assignment shared out."""
        return self._topic_groups.keys()

    def _share_others(
        self,
        cluster: Any,
        subscriptions: Any,
        clients: Mapping[str, ClientMetadata],
        found: dict[str, ClientAssignment],
    ) -> None:
        """Share out the topics of ordinary agents as Faust does."""
        cluster_assignment = ClusterAssignment()
        for member, client in clients.items():
            cluster_assignment.add_client(member, subscriptions[member], client)
        shared = {topic for each in found.values() for topic in each.actives}
        others = cluster_assignment.topics() - shared
        for count, groups in sorted(self._get_copartitioned_groups(others, cluster, subscriptions).items()):
            for topics in groups:
                assignor = CopartitionedAssignor(
                    topics=topics,
                    cluster_asgn=cluster_assignment.copartitioned_assignments(topics),
                    num_partitions=count,
                    replicas=self.replicas,
                )
                for member, share in assignor.get_assignment().items():
                    found[member].add_copartitioned_assignment(share)

    @property
    def by_writer(self) -> bool:
        """Return whether the last assignment shares out tables by writers: the member that gets a changelog
        folds the table.
        """
        return BY_WRITER in self._topic_groups

    def owned(self, changelog: str, assigned: Collection[TP]) -> frozenset[int] | None:
        """Return which partitions of a table this member is to own by the assignment that gave it *assigned*;
        None where its sources determine that, since all members run the same tables.
        """
        if not self.by_writer:
            return None
        actives = self._assignment.actives.get(changelog, ())
        return frozenset(number for number in actives if TP(changelog, number) in assigned)

    def on_assignment(self, assignment: Any) -> None:
        metadata = cast(ClientMetadata, ClientMetadata.loads(self._decompress(assignment.user_data)))
        known, own = metadata.url, str(self._url)
        self.moved = known not in (own, self.known_as)
        if known != own:
            self.known_as = known
            logger.info(
                "the group knows this worker as %(known_url)s, it is %(url)s now",
                {"known_url": known, "url": own},
            )
            assignment = type(assignment)(
                assignment.version, assignment.assignment, self._compress(_readdressed(metadata, known, own))
            )
        super().on_assignment(assignment)
        self._tell_namesakes(metadata)

    def _tell_namesakes(self, told: ClientMetadata) -> None:
        """Say once of each sign that another application has the same name."""
        is_processors = cast(Changelogs, self._table_manager.changelog_topics).is_processors
        hosts = {
            url: set(filter(is_processors, topics)) for url, topics in told.changelog_distribution.items()
        }
        app, own_urls = str(cast(Any, self.app).conf.id), {told.url, str(self._url)}
        hosts = {url: topics for url, topics in hosts.items() if url not in own_urls}
        for line in namesakes(app, self._tables(), hosts, told.topic_groups):
            if line not in self._said:
                self._said.add(line)
                logger.warning("%(line)s", {"line": line})


def _readdressed(metadata: ClientMetadata, known: str, own: str) -> bytes:
    """Return *metadata* with *own* wherever it says *known*."""
    return ClientMetadata(
        assignment=metadata.assignment,
        url=own,
        changelog_distribution=_renamed(metadata.changelog_distribution, known, own),
        external_topic_distribution=_renamed(metadata.external_topic_distribution, known, own),
        topic_groups=metadata.topic_groups,
    ).dumps()


def _renamed(hosts: Mapping[str, Any], known: str, own: str) -> dict[str, Any]:
    return {own if url == known else url: topics for url, topics in hosts.items()}
