"""A claim consumer as a process: tells each message on its output, and kills itself where it is told to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from holdfast.clients.claim_consumer import ClaimConsumer
from holdfast.clients.claim_log import CoordinationLog
from holdfast.config import Settings
from holdfast.errors import HoldfastError


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
            log._writer.flush(10)
            os.kill(os.getpid(), signal.SIGKILL)

    CoordinationLog.send = fatal  # type: ignore[method-assign, assignment]


async def main(told: dict[str, Any]) -> None:
    named = told["named"]
    hold_s, commit, block = named.pop("hold_s", 0.0), named.pop("commit", True), named.pop("block", None)
    if kind := named.pop("die_after", None):
        die_after(kind)
    settings = Settings(kafka=told["settings"], coordination_topic=told["coordination"])
    consumer = ClaimConsumer(settings, topics=[told["topic"]], group=told["group"], client=told["client"], **named)
    try:
        async with consumer:
            tell("started")
            async for message in consumer:
                key = None if message.key is None else message.key.decode()
                tell("message", partition=message.partition, offset=message.offset, lane=message.lane, key=key, epoch=message.epoch)
                if block is not None and message.offset == block[0]:
                    time.sleep(block[1])  # noqa: ASYNC251  an event loop that stands still is what is tried
                    tell("unblocked")
                if commit:
                    message.commit()
                if hold_s:
                    await asyncio.sleep(hold_s)
    except HoldfastError as error:
        tell("error", error=type(error).__name__, text=str(error))


if __name__ == "__main__":
    asyncio.run(main(json.loads(os.environ["CLAIM_PROCESS"])))
