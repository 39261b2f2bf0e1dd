"""The worker under test: `python -P -m tests.chaos.worker worker`. An ordinary application, with faults on
demand.

`CHAOS_SOURCE` and `CHAOS_OUT` name its topics, `CHAOS_TALLY` the version of the table that only counts.
`CHAOS_FAULT=POINT:N` ends the process by SIGKILL at the Nth visit to POINT; `CHAOS_GATHER` has it fold slow
streams in rounds of all of `linger_ms`; `CHAOS_FREEZE` names a file in which the test orders a freeze;
`CHAOS_HOURS` lets hours pass for Faust; `CHAOS_ASSIGNOR` has it refuse assignments; `CHAOS_RESTORE_PAUSE_MS`
makes restores slow; `CHAOS_MAX_POLL_S` is the time without a read after which aiokafka leaves the group.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.agents.app import create_app
from tests.chaos.counting import processors
from tests.chaos.faults import (
    Doom,
    fail_to_assign,
    freeze_when,
    let_gather,
    let_hours_pass,
    plant,
    slow_down,
    write_in_pieces,
)

if __name__ == "__main__":
    if os.environ.get("CHAOS_GATHER"):
        let_gather()
    write_in_pieces()
    if fault := os.environ.get("CHAOS_FAULT"):
        plant(Doom(fault))
    if order := os.environ.get("CHAOS_FREEZE"):
        freeze_when(Path(order))
    if os.environ.get("CHAOS_ASSIGNOR"):
        fail_to_assign()
    if os.environ.get("CHAOS_HOURS"):
        let_hours_pass()
    if pause_ms := os.environ.get("CHAOS_RESTORE_PAUSE_MS"):
        slow_down(float(pause_ms))
    tally_version = int(os.environ.get("CHAOS_TALLY", "1"))
    app = create_app(processors(os.environ["CHAOS_SOURCE"], os.environ["CHAOS_OUT"], tally_version))
    if max_poll_s := os.environ.get("CHAOS_MAX_POLL_S"):
        app.conf.broker_max_poll_interval = float(max_poll_s)
    app.main()
