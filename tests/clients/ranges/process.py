"""A range consumer as a process: writes each message to its output before it reports it done; dies at the
offset named.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from holdfast.clients.ranges.consumer import RangeConsumer
from holdfast.config import Settings


async def main(told: dict[str, Any]) -> None:
    async with RangeConsumer(Settings(kafka=told["settings"]), **told["named"]) as consumer:
        async for block in consumer:
            for record in block.records:
                sys.stdout.write(json.dumps([block.partition, record.offset()]) + "\n")
                sys.stdout.flush()
                if record.offset() == told["die_at"]:
                    os.kill(os.getpid(), signal.SIGKILL)
                await asyncio.sleep(told["work_s"])
            await block.done()


if __name__ == "__main__":
    asyncio.run(main(json.loads(os.environ["RANGE_PROCESS"])))
