"""The demo's audit of an outbox finds whatever is wrong, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast.core.producers.stamps import Stamp
from holdfast.dev.demo.environment import SERVICE, DemoEnvironment
from holdfast.dev.demo.steps.outbox_proof import DemoOrder, Published, flaws, gaps
from holdfast.dev.processes import is_alive
from holdfast.dev.waits import wait_until
from holdfast.errors import DemoError
from tests.support.patience import DEADLINE_S

ORDERS = {number: DemoOrder(number, f"customer-{number % 3}", 100 + number) for number in range(1, 13)}


def published(orders: Sequence[DemoOrder]) -> list[Published]:
    """Return records as two harvesters publish them, the second from the middle on; customers 0 and 2
    share a partition.
    """
    out, ends = [], [0, 0]
    for at, order in enumerate(orders):
        partition = int(order.customer[-1]) % 2
        stamp = Stamp("shop-0", 1 if at < len(orders) // 2 else 2, ends[partition])
        out.append(Published(partition=partition, offset=ends[partition], order=order, stamp=stamp))
        ends[partition] += 1
    return out


WHOLE = list(ORDERS.values())


def test_a_whole_and_ordered_log_has_no_flaws() -> None:
    assert flaws(ORDERS, published(WHOLE)) == gaps(published(WHOLE)) == []
    unrelated = [WHOLE[1], WHOLE[0], *WHOLE[2:]]  # orders of two customers have no order between them
    assert flaws(ORDERS, published(unrelated)) == []


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lambda told: [*told[:4], *told[5:]], ["order 5 was never published"]),
        (lambda told: [*told, told[0]], ["order 1 at 1/4 comes twice, first at 1/0"]),
        (
            lambda told: [*told[:3], told[6], told[4], told[5], told[3], *told[7:]],
            ["order 4 at 1/2 comes after order 7 of customer-1"],
        ),
        (
            lambda told: [*told, DemoOrder(13, "customer-1", 13)],
            ["order 13 at 1/4 is not what the database has: 13 cents of customer-1"],
        ),
        (
            lambda told: [DemoOrder(1, "customer-1", 13), *told[1:]],
            [
                "order 1 at 1/0 is not what the database has: 13 cents of customer-1",
                "order 1 was never published",
            ],
        ),
    ],
    ids=["lost", "twice", "inverted", "rolled back", "rolled back and its number lost"],
)
def test_a_lost_doubled_inverted_or_rolled_back_order_is_found_with_its_offset(
    plant: Callable[[list[DemoOrder]], list[DemoOrder]], found: list[str]
) -> None:
    assert flaws(ORDERS, published(plant(WHOLE))) == found


def test_gaps_zombies_and_records_without_a_number_are_found() -> None:
    told = published(WHOLE)
    assert gaps([*told[:3], *told[4:]]) == ["order 7 at 1/2 has number 2 of shop-0, not 1"]
    late = Published(partition=1, offset=4, order=WHOLE[0], stamp=Stamp("shop-0", 1, 4))
    assert gaps([*told, late]) == ["order 1 at 1/4 is of epoch 1, after one of epoch 2"]
    bare = Published(partition=1, offset=4, order=WHOLE[0], stamp=None)
    assert gaps([*told, bare]) == ["order 1 at 1/4 has no number"]


# -- the parts of the scenes


def test_a_wait_ends_with_its_deadline_or_when_it_is_in_vain() -> None:
    with pytest.raises(DemoError, match=r"waited 0\.05 s in vain: the sun; is the machine overloaded"):
        wait_until("the sun", lambda: None, 0.05)

    def gone() -> None:
        raise DemoError("it has ended")

    with pytest.raises(DemoError, match="it has ended"):
        wait_until("the sun", lambda: None, DEADLINE_S, check=gone)


@pytest.mark.process
def test_an_actor_has_the_services_settings_and_ends_with_the_stage(tmp_path: Path) -> None:
    with DemoEnvironment(keep=False, folder=tmp_path / "stage") as stage:
        stage.service_config.write_text(f'[holdfast]\napp = "{SERVICE["app"]}"\n')
        asked = stage.actor("asked", "holdfast.cli", "config", "-o", "json")
        wait_until("its answer", lambda: not asked.running, DEADLINE_S)
        assert f'"value": "{SERVICE["app"]}"' in asked.log.read_text()
        with pytest.raises(DemoError, match=r"asked ended with code 0; the end of .*asked\.log says"):
            asked.check()
        actor = stage.actor("actor", "http.server", "--bind", "127.0.0.1", "0")
        pid, birth = actor.pid, actor.birth
        assert birth is not None
        assert is_alive(pid, birth)
    assert not is_alive(pid, birth)
