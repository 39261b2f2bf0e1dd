"""A service that claims the partitions it works on: `python billing.py billing-1`, and another one under a
name of its own, and another.

It needs a broker and the topics, nothing else. A name must be unique in its group and the same after a
restart.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from holdfast import ClaimConsumer, settings_from_environment


async def main(client: str) -> None:
    settings = settings_from_environment()
    consumer = ClaimConsumer(
        settings,
        topics=["orders"],
        group="billing",
        client=client,
        heartbeat_interval_s=settings.claim_interval_s,
        balanced=True,
    )
    async with consumer:  # leaving it gives the claims back, so that others take over at once
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)  # type: ignore[union-attr]
        async for message in consumer:
            print(
                f"{client} bills {(message.value or b'').decode()} of partition {message.partition} at offset"
                f" {message.offset}",
                flush=True,
            )
            message.commit()  # when it is done; in any order, from any task


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1]))
    except asyncio.CancelledError:
        print("all claims are given back", flush=True)
