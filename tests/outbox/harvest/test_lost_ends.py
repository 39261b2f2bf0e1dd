"""A broker that has lost the end of a leader's transaction: the next leader waits, and resumes once it has
been ended as was decided.
"""

from __future__ import annotations

import pytest

from holdfast.dev.fixtures import SessionBroker
from tests.outbox.databases import FreshOutbox
from tests.outbox.harvesting import PARTITIONS, Alone, Rig
from tests.support import own_broker
from tests.support.harness import end_transactions, wait_for
from tests.support.lost_markers import lose_markers
from tests.support.patience import DEADLINE_S

holdfast_broker, broker = own_broker.holdfast_broker, own_broker.broker


@pytest.mark.slow
def test_a_leader_waits_for_the_end_of_a_transaction_and_then_continues(
    broker: SessionBroker, postgres_outbox: FreshOutbox
) -> None:
    rig = Rig(broker, postgres_outbox, broker.create_topic("events", partitions=PARTITIONS))
    progress = rig.settings().progress_topic
    rig.fill(50)
    with Alone(rig.settings()):
        rig.wait_empty()
    lose_markers(broker, progress, 0)
    rig.fill(50)
    with Alone(rig.settings(commit_timeout_s=2)) as leader:
        wait_for(
            "the reason",
            lambda: leader.stats.restarts > 1 and "on a transaction is open" in leader.stats.last_error,
            DEADLINE_S,
            lambda: str(leader.stats),
        )
        assert rig.left() == 50
    end_transactions(broker.bootstrap)
    with Alone(rig.settings()):
        rig.wait_empty()
    rig.prove()
