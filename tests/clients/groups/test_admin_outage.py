"""A reset while the broker goes away (M13): a short outage costs time, a long one leaves everything as it
was or finishes later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.clients.groups.records import ResetProgress, ResetStep
from holdfast.core.claims.resets import ResetCommit
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import HoldfastError
from tests.clients.groups.test_admin_kills import Reset, resets_of
from tests.support.group_desk import GroupDesk
from tests.support.parts import part
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.slow

REQUEST_S = 3.0


@pytest.fixture(scope="module")
@part("kafka")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("kafka"), short_lived=True) as made:
        yield made


@pytest.fixture
def resets(cluster: Cluster) -> Iterator[Callable[[], Reset]]:
    broker = SessionBroker(config=cluster.client_config(), cluster=cluster)
    topics = FreshTopic(broker)
    desk = GroupDesk(broker, topics, request_timeout_s=REQUEST_S)
    made = resets_of(desk)
    yield lambda: next(made)
    desk.close()
    topics.delete_all()


def outcome(reset: Reset, at: ResetStep, trouble: Callable[[], None]) -> HoldfastError | None:
    """Run the reset with *trouble* at the step, and return what it raised."""

    def tell(progress: ResetProgress) -> None:
        if progress.step is at:
            trouble()

    try:
        reset.run(tell=tell)
    except HoldfastError as error:
        return error
    return None


@pytest.mark.parametrize("step", [ResetStep.PAUSED, ResetStep.CLAIMED, ResetStep.DECIDED])
def test_a_broker_that_is_killed_and_comes_back_leaves_no_mixture(
    cluster: Cluster, resets: Callable[[], Reset], tmp_path: Path, step: ResetStep
) -> None:
    reset = resets()
    back = threading.Thread(target=cluster.restart, args=(1,))

    def trouble() -> None:
        cluster.kill(1)
        back.start()

    error = outcome(reset, step, trouble)
    back.join(DEADLINE_S)
    committed = any(
        isinstance(decision, ResetCommit) and decision.group == reset.group
        for decision in reset.desk.decisions()
    )
    reset.settle()
    assert reset.check() == (reset.new if committed else reset.old), error
    if error is None:
        assert committed, "what returns has moved everything"


@pytest.mark.parametrize("step", [ResetStep.PAUSED, ResetStep.CLAIMED, ResetStep.DECIDED])
def test_a_broker_that_is_away_for_longer_than_anybody_waits_leaves_no_mixture(
    cluster: Cluster, resets: Callable[[], Reset], step: ResetStep
) -> None:
    reset = resets()
    reset.deadline_s = 2 * REQUEST_S
    try:
        error = outcome(reset, step, lambda: cluster.pause(1))
    finally:
        cluster.resume(1)
    cluster.wait_ready()  # frozen for longer than its own session, it leads nothing at first
    assert error is not None
    if step is ResetStep.DECIDED:
        assert "is decided, but not every partition could be given back" in str(error)
        assert "holdfast groups resume" in str(error)
    # A frozen broker may take requests that were on their way when it thaws: the decision too. So wait for a
    # decision of the next reset.
    reset.settle()
    found = reset.check()
    committed = [
        decision
        for decision in reset.desk.decisions()
        if decision.group == reset.group and isinstance(decision, ResetCommit)
    ]
    assert found == (reset.new if committed else reset.old)
    assert step is not ResetStep.DECIDED or committed
