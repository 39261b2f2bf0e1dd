"""Faust's assignor for members that return under another address.

Overrides faust-streaming 0.15.3's, which tests/agents/faust/test_contract.py holds us to.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from faust.assignor.client_assignment import ClientMetadata
from faust.assignor.partition_assignor import PartitionAssignor

logger = logging.getLogger(__name__)


class ReturningAssignor(PartitionAssignor):
    """Takes an assignment made for this member's old URL as its own.

    A static member that returns within its session gets its old assignment as it was made, and may have
    another address by now: a pod's, or another `web_port`. Stock asserts that it has not.
    """

    moved = False
    """Whether the last assignment was the first to name this URL of before: one more, made anew, tells
    everybody the one of today.
    """
    known_as = ""

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
