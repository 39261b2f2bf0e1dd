"""A worker's memory stays below the bound of docs/operating.md, however well its input is compressed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import AlterConfig
from holdfast.core.kafka.compression import Compression
from tests.chaos.conftest import MakeApplication
from tests.support.bombs import CODECS, MIB, many_headers, many_records, one_value, send_batches
from tests.support.harness import Application, Worker
from tests.support.patience import SCENARIO_S
from tests.support.proof import last_offsets, read_topic

PARTITIONS = 4
LARGEST_BATCH_BYTES = 16 * MIB

Shape = Callable[[Compression, int], bytes]


def headers_without_end(codec: Compression, limit_bytes: int) -> bytes:
    """Return some of the records that are worst for their size: to fill the limit with them takes a minute
    here, and no more memory.
    """
    return many_headers(codec, limit_bytes // 32)


def resident_bytes(worker: Worker, what: str) -> int:
    """Return a field of the worker's /proc/PID/status in bytes: VmRSS is current, VmHWM the peak."""
    (child,) = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text().split() or [
        str(worker.process.pid)
    ]
    lines = Path(f"/proc/{child}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


def bound_bytes(app: Application) -> int:
    """Return the bytes that docs/operating.md, "Memory", allows in addition to an idle worker's. Stores and
    rows are left out, because there are few here.
    """
    settings = app.settings
    return (
        settings.inflight_bytes
        + 3 * settings.fetch_bytes
        + LARGEST_BATCH_BYTES
        + 5 * settings.unpacked_batch_bytes
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [one_value, headers_without_end],
    ids=lambda shape: shape.__name__,
)
def test_bombs_below_the_limit_take_no_more_memory_than_is_documented(
    application: MakeApplication, shape: Shape
) -> None:
    app = application(partitions=PARTITIONS)
    Admin(app.settings).apply(
        [AlterConfig(topic=app.source, config={"max.message.bytes": str(LARGEST_BATCH_BYTES)})]
    )
    worker = app.worker().start().wait_ready()
    idle_bytes = resident_bytes(worker, "VmRSS")
    limit_bytes = app.settings.unpacked_batch_bytes
    good = many_records(Compression.NONE, 1, b"add k1 1")
    for codec in CODECS:
        bombs = [shape(codec, limit_bytes), good]
        codes = send_batches(
            app.broker.config,
            ((app.source, partition, bomb) for partition in range(PARTITIONS) for bomb in bombs),
        )
        assert set(codes) == {0}, codec
    app.wait_applied(last_offsets(read_topic(app.broker, app.source)), SCENARIO_S)
    used_bytes = resident_bytes(worker, "VmHWM") - idle_bytes
    print(
        f"idle {idle_bytes >> 20} MiB, {used_bytes >> 20} MiB more at most, {bound_bytes(app) >> 20} MiB"
        " documented"
    )
    assert used_bytes < bound_bytes(app)
    worker.stop()
