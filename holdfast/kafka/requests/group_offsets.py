"""All that a group has committed, asked of its coordinator over aiokafka's connections.

librdkafka's admin client, which has the same question, ends the process by a segmentation fault when the
broker that it asks is not the coordinator any more (confluentinc/librdkafka#5040); its consumer has to name
each partition.
"""

from __future__ import annotations

import asyncio

from aiokafka.errors import BrokerResponseError, KafkaConnectionError, KafkaError
from aiokafka.protocol.commit import OffsetFetchRequest

from holdfast.clock import Backoff, Clock, system_clock
from holdfast.config import Settings
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, GroupError
from holdfast.kafka.codes import NO_GROUP, name_of, retriable
from holdfast.kafka.requests.connections import connector, log_in_refused

ATTEMPT_S = 3.0
"""The timeout of the first attempt. Each further one may take twice as long, for a slow coordinator."""
_GROUP_COORDINATOR = 0
_BACKOFF = Backoff(0.05, 1.0)


async def committed_offsets(
    settings: Settings, group: str, *, timeout_s: float, clock: Clock = system_clock
) -> dict[Place, int]:
    """Return the committed offsets of *group*, of the topics that this principal may see; empty for a group
    that does not exist.

    The request is repeated while the coordinator moves, loads its log or does not answer. BrokerError at the
    deadline, and at once for refused credentials; GroupError for any other permanent error.
    """
    asked = f"offsets of group {group}"
    until_s, waits_s, why = clock.monotonic_s() + timeout_s, _BACKOFF.waits_s(), "no answer"
    attempts_s = Backoff(ATTEMPT_S, timeout_s).waits_s()
    while True:
        attempt_s = min(next(attempts_s), max(0.0, until_s - clock.monotonic_s()))
        try:
            async with asyncio.timeout(attempt_s):
                code, found = await _ask(settings, group, attempt_s)
        except TimeoutError:
            why = "no answer"
        except (KafkaError, OSError) as error:
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, KafkaConnectionError):
                await _require_log_in(settings, until_s - clock.monotonic_s())
        else:
            if code == 0 or code in NO_GROUP:
                return found
            why = name_of(code)
            if not retriable(code):
                raise GroupError(f"{asked}: {why}")
        wait_s = next(waits_s)
        if clock.monotonic_s() + wait_s >= until_s:
            raise BrokerError(
                f"{asked}: {why}; asked {settings.bootstrap_servers} for {timeout_s:g} s, check the broker"
            )
        await asyncio.sleep(wait_s)


async def _require_log_in(settings: Settings, wait_s: float) -> None:
    """Raise BrokerError where the credentials are refused: no patience mends that."""
    try:
        async with asyncio.timeout(min(ATTEMPT_S, max(0.0, wait_s))):
            refused = await log_in_refused(settings, timeout_s=ATTEMPT_S)
    except TimeoutError:
        return
    if refused is not None:
        raise BrokerError(
            f"cannot log in to Kafka at {settings.bootstrap_servers}: {refused}; check the sasl.* and ssl.*"
            " properties"
        )


async def _ask(settings: Settings, group: str, timeout_s: float) -> tuple[int, dict[Place, int]]:
    """Return an error code, 0 for success, and the committed offsets. Each attempt has connections of its
    own, so it finds the brokers of that moment.
    """
    client = connector(settings, timeout_s=timeout_s)()
    try:
        await client.bootstrap()
        try:
            coordinator = await client.coordinator_lookup(_GROUP_COORDINATOR, group)
        except BrokerResponseError as error:
            return int(error.errno), {}
        response = await client.send(coordinator, OffsetFetchRequest(group, None))
    finally:
        await client.close()
    found: dict[Place, int] = {}
    for topic, partitions in response.topics:
        for partition, offset, _, code in partitions:
            if code:
                return int(code), {}
            if offset >= 0:
                found[topic, int(partition)] = int(offset)
    return int(response.error_code), found
