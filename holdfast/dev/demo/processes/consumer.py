"""`python -P -m holdfast.dev.demo.processes.consumer TOPIC GROUP CLIENT BOOK`: a service of the demo that
claims partitions, until SIGTERM.

Each message is one line in its book, `partition offset seconds`, written before the message is committed; so
the book of a process that was killed says what it had handled.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from holdfast.clients.claims.consumer import ClaimConsumer
from holdfast.clock import system_clock
from holdfast.config import settings_from_environment


async def main(topic: str, group: str, client: str, book: Path) -> None:
    """Handle the messages of the claims, until asked to end; then give the claims back."""
    settings = settings_from_environment()
    consumer = ClaimConsumer(
        settings,
        topics=[topic],
        group=group,
        client=client,
        heartbeat_interval_s=settings.claim_interval_s,
        balanced=True,
    )
    with book.open("ab", buffering=0) as lines:
        async with consumer:
            ending: list[asyncio.Task[None]] = []
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(
                signal.SIGTERM, lambda: ending.append(loop.create_task(consumer.terminate(release=True)))
            )
            async for message in consumer:
                lines.write(
                    f"{message.partition} {message.offset} {system_clock.monotonic_s():.6f}\n".encode()
                )
                message.commit()
            await asyncio.gather(*ending)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
