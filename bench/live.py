"""Live: 5,000 records/s; from append to visible in a query, and what a core spends on it; then an idle
worker.

    python -P -m bench.live [--rate 5000] [--seconds 20]

About twenty times a second one probe is produced between the others; its reader asks the worker over HTTP for
the row, waiting for the offset that its producer got. Latency is from produce() to that answer, so it
includes the producer's own way to the broker. Probes come at random moments: an answer comes when a
transaction ends, and one that followed a fixed time after the last would meet the worker's rounds always at
the same point. The broker is warmed up first, and the worker by the traffic itself.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import threading
import time
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bench.processes import Worker, quantiles, worker
from bench.run import Bench, bench, load_average
from bench.traffic import heartbeats
from bench.warm import warm
from holdfast.agents.services.rationalizer import processors
from holdfast.clients.tables.client import TableClient
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import claim_key
from holdfast.core.claims.frames import Heartbeat, decode

WARM_S = 15.0
USUAL_LINGER_MS = 5  # the default of librdkafka and of Kafka 4
DEADLINE_S = 20.0
PAUSE_S = 0.025, 0.075


def trickle(bootstrap: str, topic: str, rate: int, stop: threading.Event, linger_ms: int = 1) -> None:
    """Produce *rate* heartbeats a second, evenly, in slices of 5 ms."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": linger_ms})
    traffic = heartbeats(10**9, 2_000)
    due_s, sent, started_s = 0.005, 0, time.perf_counter()
    while not stop.is_set():
        wait_s = due_s - (time.perf_counter() - started_s)
        if wait_s > 0:
            time.sleep(wait_s)
        due_s += 0.005
        for _ in range(int(due_s * rate) - sent):
            partition, value = next(traffic)
            while True:
                try:
                    producer.produce(topic, value, partition=partition)
                    break
                except BufferError:  # the broker is behind
                    producer.poll(0.01)
            sent += 1
        producer.poll(0)
    producer.flush(10)


async def probe(on: Bench, settings: Settings, seconds: float) -> list[float]:
    """Return the time from produce() to a query that shows the record, for probes twenty times a second."""
    claims = processors(settings)[0]
    producer = Producer({"bootstrap.servers": on.bootstrap, "linger.ms": 0})
    loop = asyncio.get_running_loop()
    out: list[float] = []
    acked: list[float] = []
    pauses = random.Random(1)
    samples = [(partition, value) for partition, value in heartbeats(400, 400)]
    async with TableClient(settings, [claims]) as tables:
        ended_s = time.perf_counter() + seconds
        while time.perf_counter() < ended_s:
            partition, value = samples[len(out) % len(samples)]
            frame = decode(value)
            assert isinstance(frame, Heartbeat)
            told: asyncio.Future[int] = loop.create_future()

            def delivered(
                error: KafkaError | None, message: Message, told: asyncio.Future[int] = told
            ) -> None:
                if error is None:
                    loop.call_soon_threadsafe(told.set_result, message.offset() or 0)
                else:
                    loop.call_soon_threadsafe(told.set_exception, KafkaException(error))

            started_s = time.perf_counter()
            producer.produce(on.topic, value, partition=partition, on_delivery=delivered)
            await loop.run_in_executor(None, producer.flush, 5)
            offset = await asyncio.wait_for(told, DEADLINE_S)
            acked.append(time.perf_counter() - started_s)
            key = claim_key(frame.group_id, frame.topic, frame.partition)
            answer = await tables.get(claims, key, partition=partition, at_least=(partition, offset))
            assert answer.as_of_offset >= offset
            out.append(time.perf_counter() - started_s)
            await asyncio.sleep(pauses.uniform(*PAUSE_S))
    print(f"  of which to the producer's acknowledgement: {quantiles(acked[10:])}")
    return out[10:]


def measure(on: Bench, rate: int, seconds: float) -> None:
    environment = on.environment("live", BENCH_RECORDS="0")
    settings = Settings(app="live", kafka={"bootstrap.servers": on.bootstrap}, coordination_topic=on.topic)
    with worker(environment, on.folder) as live:
        live.wait_ready()
        time.sleep(3)
        idle(live, 10)
        stop = threading.Event()
        traffic = threading.Thread(target=trickle, args=(on.bootstrap, on.topic, rate, stop))
        traffic.start()
        try:
            time.sleep(WARM_S)
            cpu_s, started_s = live.cpu_s(), time.perf_counter()
            samples = asyncio.run(probe(on, settings, seconds))
            share = (live.cpu_s() - cpu_s) / (time.perf_counter() - started_s)
        finally:
            stop.set()
            traffic.join(DEADLINE_S)
        print(
            f"  append to visible at {rate:,} records/s: {quantiles(samples)}  (wanted p50 <= 15, p99 <= 60)"
        )
        print(
            f"  worker: {share:.0%} of a core (wanted <= 40 %), {live.rss_mb()} MB; {load_average()}",
            flush=True,
        )


def idle(live: Worker, seconds: float) -> None:
    cpu_s = live.cpu_s()
    time.sleep(seconds)
    print(f"  idle worker: {(live.cpu_s() - cpu_s) / seconds:.1%} of a core (wanted < 2 %)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument(
        "--feed",
        nargs=2,
        metavar=("BOOTSTRAP", "TOPIC"),
        help="only produce the traffic, by a producer's usual linger",
    )
    given = parser.parse_args()
    if given.feed:
        stop = threading.Event()
        threading.Timer(given.seconds, stop.set).start()
        trickle(given.feed[0], given.feed[1], given.rate, stop, USUAL_LINGER_MS)
        return
    with bench(1_000, 500) as on:
        Path(on.folder).mkdir(exist_ok=True)
        warm(on.bootstrap)
        measure(on, given.rate, given.seconds)


if __name__ == "__main__":
    main()
