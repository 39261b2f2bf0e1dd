"""A claim consumer as a process: prints each message, and kills or stops itself at a given point."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.clients.claims.blocking import BlockingClaimConsumer
from holdfast.clients.claims.claiming.delivery import ClaimDelivery
from holdfast.clients.claims.claiming.queue import Lease
from holdfast.clients.claims.consumer import ClaimConsumer, ClaimedMessage
from holdfast.clients.claims.logs.claim_log import CoordinationLog
from holdfast.config import Settings
from holdfast.errors import ClaimLostError, HoldfastError
from tests.clients.claims.claiming import GateClock
from tests.support.patience import DEADLINE_S

clock = GateClock()


def tell(kind: str, **what: Any) -> None:
    sys.stdout.write(json.dumps({"kind": kind, "at_s": time.monotonic(), **what}) + "\n")
    sys.stdout.flush()


def die_after(kind: str) -> None:
    """Have the process killed as soon as the broker has a frame of this *kind* that moves an offset."""
    send = CoordinationLog.send

    def fatal(log: CoordinationLog, send_id: int, value: bytes, partition: int) -> None:
        send(log, send_id, value, partition)
        if value.startswith(f"{kind}/".encode()) and not value.endswith(b"/0"):
            assert log._writer is not None
            log._writer.flush(DEADLINE_S)
            os.kill(os.getpid(), signal.SIGKILL)

    CoordinationLog.send = fatal  # type: ignore[method-assign, assignment]


def stop_at_gate(side: str, count: int) -> None:
    """Have the process stopped right *before* a gate is asked for the *count*th time, or right *after* it
    has said yes that often.
    """
    ask = ClaimDelivery.may_deliver
    left = count

    def stopping(delivery: ClaimDelivery, lease: Lease) -> bool:
        nonlocal left
        if left == 1 and side == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        answer = ask(delivery, lease)
        if left == 1 and side == "after" and answer:
            os.kill(os.getpid(), signal.SIGSTOP)
        left -= side == "before" or answer
        return answer

    ClaimDelivery.may_deliver = stopping  # type: ignore[method-assign, assignment]


class Work:
    """The work on a message."""

    def __init__(self, *, commit: bool, go_on: bool, block: tuple[int, str] | None) -> None:
        self._commit, self._go_on, self._block = commit, go_on, block

    def on(self, message: ClaimedMessage, gate_s: float) -> None:
        key = None if message.key is None else message.key.decode()
        where = {
            "partition": message.partition,
            "offset": message.offset,
            "lane": message.lane,
            "epoch": message.epoch,
        }
        tell("message", gate_s=gate_s, key=key, **where)
        if self._block is not None and message.offset == self._block[0]:
            until_s = time.monotonic() + DEADLINE_S
            while not Path(self._block[1]).exists() and time.monotonic() < until_s:
                time.sleep(0.05)  # the test is of a blocked event loop
            tell("unblocked")
        if self._commit:
            try:
                message.commit()
            except ClaimLostError:
                if not self._go_on:
                    raise


async def by_message(consumer: ClaimConsumer, work: Work, hold_s: float) -> None:
    async for message in consumer:
        work.on(message, clock.asked_s())
        if hold_s:
            await asyncio.sleep(hold_s)


async def by_batch(consumer: ClaimConsumer, work: Work) -> None:
    async for batch in consumer.batches():
        gate_s = clock.asked_s()
        for message in batch:
            work.on(message, gate_s)


async def main(told: dict[str, Any]) -> None:
    named = told["named"]
    hold_s, form = named.pop("hold_s", 0.0), named.pop("form", "messages")
    work = Work(
        commit=named.pop("commit", True), go_on=named.pop("go_on", False), block=named.pop("block", None)
    )
    if kind := named.pop("die_after", None):
        die_after(kind)
    if gate := named.pop("stop_at_gate", None):
        stop_at_gate(*gate)
    settings = Settings(kafka=told["settings"], coordination_topic=told["coordination"])
    named |= {"topics": [told["topic"]], "client": told["client"], "clock": clock}
    try:
        if form == "blocking":
            with BlockingClaimConsumer(settings, **named) as blocking:
                tell("started")
                for message in blocking:
                    work.on(message, clock.asked_s())
            return
        async with ClaimConsumer(settings, **named) as consumer:
            tell("started")
            await (by_message(consumer, work, hold_s) if form == "messages" else by_batch(consumer, work))
    except HoldfastError as error:
        tell("error", error=type(error).__name__, text=str(error))


if __name__ == "__main__":
    asyncio.run(main(json.loads(os.environ["CLAIM_PROCESS"])))
