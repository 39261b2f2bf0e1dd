"""The same service as billing.py without asyncio:

`python billing_blocking.py billing-1`. Threads may handle and commit messages.
"""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from holdfast import BlockingClaimConsumer, ClaimedMessage, settings_from_environment

THREADS = 4


def bill(client: str, message: ClaimedMessage) -> None:
    print(
        f"{client} bills {(message.value or b'').decode()} of partition {message.partition} at offset"
        f" {message.offset}",
        flush=True,
    )
    # a later message may be done before an earlier one: the committed offset is that of the first unfinished
    # one
    message.commit()


def main(client: str) -> None:
    settings = settings_from_environment()
    consumer = BlockingClaimConsumer(
        settings,
        topics=["orders"],
        group="billing",
        client=client,
        heartbeat_interval_s=settings.claim_interval_s,
        balanced=True,
    )
    with (
        consumer,
        ThreadPoolExecutor(THREADS) as threads,
    ):  # the threads end first, then the claims are given back
        for batch in consumer.batches():
            for done in [threads.submit(bill, client, message) for message in batch]:
                done.result()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        print("all claims are given back", flush=True)
