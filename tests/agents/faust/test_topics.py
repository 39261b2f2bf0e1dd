"""A record that no agent can have is named in the log, since it ends the worker at each start."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agents.app import create_app


@pytest.mark.parametrize("part", ["key", "value"])
def test_the_error_of_a_record_that_cannot_be_decoded_names_its_position(
    part: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def decoded() -> None:
        kinds: dict[str, Any] = {"key_type": int, "value_type": int}
        topic: Any = create_app([]).topic("orders", **kinds)
        record = SimpleNamespace(
            key=b"x" if part == "key" else b"1",
            value=b"x",
            topic="orders",
            partition=3,
            offset=41,
            headers=[],
            timestamp=0.0,
            timestamp_type=1,
        )
        await topic.decode(record)

    asyncio.run(decoded())
    (line,) = [
        each.getMessage() for each in caplog.records if each.name == "holdfast.agents.faust.declared.topics"
    ]
    assert line.startswith("record orders/3/41 cannot be decoded for an agent: ")
    assert "OneForOneSupervisor" in line
