"""Announces this worker on the application's workers topic: its URL, and the partitions that it holds."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.agents.partitions.types import RunInThread
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.upgrades import Switch, encode_switch, switch_key
from holdfast.kafka.clients import CRITICAL, make_writer
from holdfast.kafka.librdkafka_log import Quiet

logger = logging.getLogger(__name__)

FLUSH_S = 10.0


class Announcer:
    """Announces a worker under its URL, and takes that back at the end.

    `producer` is also for records that are written outside of any partition's transactions.
    """

    def __init__(self, settings: Settings, thread: RunInThread, *, clock: Clock = system_clock) -> None:
        self._topic, self._url, self._thread = settings.workers_topic, settings.advertised_url, thread
        self._clock, self._started_ms, self._announced = clock, clock.now_ms(), False
        self.producer = make_writer(
            {**settings.producer(), "enable.idempotence": True, "message.timeout.ms": 15_000},
            logger=Quiet(logger),
            log_level=CRITICAL,
        )

    async def announce(self, generation: int, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Announce the partitions that this worker holds now, by table (`announcement_of`), so that any
        client can find them.
        """
        self._announced = True
        announcement = {
            "url": self._url,
            "generation": generation,
            "started_ms": self._started_ms,
            "at_ms": self._clock.now_ms(),
            "tables": tables,
        }
        await self._send(json.dumps(announcement).encode())

    async def switch(self, switch: Switch) -> None:
        """Make a version of a table the current one."""
        logger.info(
            "version %(version)d of %(table)s is current from here on; it replaces version %(before)d",
            {"version": switch.version, "table": switch.table, "before": switch.before},
        )
        await self._send(encode_switch(switch), switch_key(switch.table))

    async def withdraw(self) -> None:
        """Withdraw the announcement."""
        if self._announced:
            await self._send(None)

    async def _send(self, value: bytes | None, key: str = "") -> None:
        self.producer.produce(self._topic, value, (key or self._url).encode(), 0)
        left = await self._thread(self.producer.flush, FLUSH_S)
        if left:
            logger.warning(
                "could not announce %(url)s in %(topic)s; queries will find it late",
                {"url": self._url, "topic": self._topic},
            )


def announcement_of(
    processor: Processor[Any, Any],
    partitions: int,
    active: Iterable[int],
    standby: Iterable[int],
    partial: Iterable[int] = (),
) -> dict[str, Any]:
    """Return the announcement of one table; *partial* partitions began after a gap in a source."""
    holed = sorted(partial)
    return {
        "version": processor.version,
        "partitions": partitions,
        "active": sorted(active),
        "standby": sorted(standby),
        **({"partial": holed} if holed else {}),
    }
