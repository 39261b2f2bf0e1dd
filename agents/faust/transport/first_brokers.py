"""Waits, before the group is asked for, until the metadata name brokers: aiokafka's coordinator ends where
they do not.

Wraps private names of aiokafka 0.14.0, which tests/agents/faust/test_contract.py holds us to.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaConnectionError

FIRST = ("bootstrap", ConnectionGroup.DEFAULT)
"""The connection that aiokafka keeps until it knows a broker."""
LOOK_S = 0.5


def await_brokers(coordinator: Any) -> None:
    """Have *coordinator* look for its broker when the metadata name one, and not before.

    A broker that its controller takes for dead, and that does not know it yet, answers that there is none:
    an only one does so while its machine is held up. aiokafka keeps the brokers that it knows then, but at
    the start of a worker it knows none. Java's clients ask again; so does this, until the worker ends, or
    its watch ends one that is not ready for too long. Called in the coordinator's thread.
    """
    plain, client = coordinator.ensure_coordinator_known, coordinator._client

    async def ensure_known() -> None:
        while not client.cluster.brokers() and not coordinator._closing.done():
            await _look(client)
            if not client.cluster.brokers():
                await asyncio.wait([coordinator._closing], timeout=LOOK_S)
        if not coordinator._closing.done():
            await plain()

    coordinator.ensure_coordinator_known = ensure_known


async def _look(client: Any) -> None:
    """Ask for metadata, by the bootstrap servers if the connection to the first one is gone."""
    if FIRST not in client._conns:
        with suppress(KafkaConnectionError):
            await client.bootstrap()
    await client.force_metadata_update()
