"""An operator's command finds the same in a batch as the worker that is stalled at it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from holdfast.clients.quarantine.records import Quarantine
from holdfast.clients.quarantine.skips import SkipRequests
from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.errors import SkipError
from tests.chaos.conftest import MakeApplication
from tests.support.damage import MIB, damage, send
from tests.support.harness import Application, wait_for
from tests.support.patience import DEADLINE_S

LINGER_MS = 50_000


def lie_in_the_third(batch: bytearray) -> None:
    """Have the third record claim to be longer than the batch."""
    size = 1 + batch[61] // 2
    batch[61 + 2 * size] = 0x7E


def is_made(skipping: SkipRequests, last: int) -> bool:
    return any(each.made and each.last == last for each in skipping.skips().all())


def noted(shop: Application, processor: str) -> list[tuple[int, int, str]]:
    """Return the skips of *processor* that are in the quarantine: first and last offset, and codec."""
    found = Quarantine(shop.settings).records(lambda each: each.processor == processor)
    return [(each.offset, each.batch.last, each.batch.codec) for each in found if each.batch is not None]


@pytest.mark.slow
def test_a_worker_makes_the_skip_that_was_asked_for_and_resumes(application: MakeApplication) -> None:
    shop = application(partitions=1, unpacked_batch_bytes=MIB)
    counts = shop.processors[0]
    skipping = SkipRequests(replace(shop.settings, unpacked_batch_bytes=MIB), [shop.source])
    seen = [b"add seen 1"] * 4
    send(shop.broker, shop.source, "none", seen, linger_ms=LINGER_MS)
    send(shop.broker, shop.source, "zstd", [bytes(2 * MIB)])
    send(shop.broker, shop.source, "none", seen, linger_ms=LINGER_MS)
    damage(shop.broker, shop.source, 0, lie_in_the_third, checksum=True)
    worker = shop.worker().start()
    for first, last, error in ((2, 3, "LengthError"), (4, 4, "TooLargeError")):
        where = f"offset {first}" if first == last else f"offsets {first} to {last}"
        worker.wait_said(f"stands before {where}, which cannot be read", DEADLINE_S)
        plan = asyncio.run(skipping.plan(shop.source, 0, first, skipping.skips()))
        assert (plan.batch.first, plan.batch.last, plan.batch.error) == (first, last, error)
        skipping.ask(plan, by="ada@desk")
        wait_for("the skip to be made", partial(is_made, skipping, last), DEADLINE_S, worker.tail)
    wait_for(
        "all to be folded",
        lambda: worker.applied() == {(each.name, 0): 8 for each in shop.processors},
        DEADLINE_S,
        worker.tail,
    )
    wait_for("it to be ready", lambda: worker.ready, DEADLINE_S, worker.tail)
    with BlockingTableClient(shop.settings, [counts]) as tables:
        row = tables.get(counts, "seen", partition=0, timeout_s=DEADLINE_S).value
    assert row is not None
    assert row.total == 2 + 4
    assert [
        (each.first, each.last, each.made, each.by.startswith("ada@desk by http"))
        for each in skipping.skips().all()
    ] == [
        (2, 3, True, True),
        (4, 4, True, True),
    ], "what the worker made counts, and no wish for it any more"
    # The end of a transaction is decided before committed readers see it.
    wait_for(
        "both to be noted",
        lambda: noted(shop, counts.name) == [(2, 3, "none"), (4, 4, "zstd")],
        DEADLINE_S,
        lambda: str(noted(shop, counts.name)),
    )
    with pytest.raises(SkipError, match="skipped already"):
        asyncio.run(skipping.plan(shop.source, 0, 2, skipping.skips()))
    worker.stop()
