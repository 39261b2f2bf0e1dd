"""A wrong time to wait is refused where it is given: a value that is not a number of seconds would wait for
ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from holdfast import BlockingClaimConsumer, ClaimConsumer, SequencedProducer, Settings
from holdfast.config.client_arguments import require_wait
from holdfast.errors import ConfigError

NO_WAITS = ("1", float("nan"), np.float32("nan"), timedelta(seconds=1), True, 1j)
OF_CLAIMS: dict[str, Any] = {"topics": ["orders"], "group": "billing", "client": "billing-1"}


def _asynchronous(ask: Callable[[ClaimConsumer], Any]) -> Callable[[], Any]:
    async def asked() -> None:
        await ask(ClaimConsumer(Settings(), **OF_CLAIMS))

    return lambda: asyncio.run(asked())


def _blocking(ask: Callable[[BlockingClaimConsumer], Any]) -> Callable[[], Any]:
    return lambda: ask(BlockingClaimConsumer(Settings(), **OF_CLAIMS))


ASKS: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "get": lambda given: _asynchronous(lambda consumer: consumer.get(given)),
    "flush": lambda given: _asynchronous(lambda consumer: consumer.flush(given)),
    "terminate": lambda given: _asynchronous(
        lambda consumer: consumer.terminate(release=True, timeout_s=given)
    ),
    "blocking get": lambda given: _blocking(lambda consumer: consumer.get(given)),
    "blocking flush": lambda given: _blocking(lambda consumer: consumer.flush(given)),
    "blocking terminate": lambda given: _blocking(
        lambda consumer: consumer.terminate(release=True, timeout_s=given)
    ),
    "producer's flush": lambda given: lambda: SequencedProducer(Settings(), "shop").flush(given),
}


@pytest.mark.parametrize("given", NO_WAITS, ids=repr)
@pytest.mark.parametrize("ask", ASKS)
def test_a_wrong_time_is_refused(ask: str, given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^timeout_s is .*: write a number of seconds"):
        ASKS[ask](given)()


def test_a_time_is_taken() -> None:
    for given in (0, -1, 2.5, float("inf"), np.float32(1)):
        require_wait(given)
    require_wait(None, none=True)
    with pytest.raises(ConfigError, match="timeout_s is None"):
        require_wait(None)
