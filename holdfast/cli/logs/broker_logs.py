"""`holdfast producers transactions` and `holdfast groups committed`: the broker's own logs, folded for every
application.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from holdfast.cli.options.context import output_of, settings_of
from holdfast.cli.output import Cell, Output, note, show, utc_ms
from holdfast.config import Settings
from holdfast.core.broker_logs.folds import (
    Committed,
    Generation,
    TransactionRow,
    committed_log,
    place_of_key,
    transactions_log,
)
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.kafka.transaction_state import TransactionState
from holdfast.errors import ConfigError

TRANSACTION_COLUMNS = (
    *("transactional_id", "coordinator", "producer_id", "epoch", "state", "partitions", "started", "updated"),
    *("timeout_ms", "committed", "aborted", "fenced"),
)
COMMITTED_COLUMNS = (
    "group",
    "topic",
    "partition",
    "offset",
    "committed_at",
    "commits",
    "leader_epoch",
    "metadata",
)
GROUP_COLUMNS = ("group", "type", "generation", "protocol", "#members", "changed_at")
SHOWN_PARTITIONS = 3


def rows_of(settings: Settings, processor: Processor[Any, Any]) -> Iterator[tuple[int, str, Any]]:
    """Yield partition, key and row of all that *processor* makes of its topic as it is now, and report
    unknown records.
    """
    from holdfast.pipeline.broker_rows import rows_of

    topic = processor.topics[0]
    return rows_of(
        settings,
        processor,
        lambda count: note(f"{count} records of {topic} are of a kind or version that is not known here"),
    )


def _state(name: str) -> TransactionState:
    try:
        return TransactionState[name.upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(each.name.lower().replace("_", "-") for each in TransactionState)
        raise ConfigError(f"--state {name} is not a state; choose one of {known}") from None


def transactions(
    context: typer.Context,
    transactional_id: Annotated[
        str | None, typer.Option("--id", metavar="TEXT", help="Only ids that contain this text.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", help="Only transactions in this state, such as ongoing or complete-abort."),
    ] = None,
) -> None:
    wanted, output = None if state is None else _state(state), output_of(context)
    records: list[dict[str, Cell]] = []
    for partition, key, row in rows_of(settings_of(context), transactions_log()):
        assert isinstance(row, TransactionRow)
        noted, name = row.noted, key.removeprefix("t/")
        if (transactional_id is not None and transactional_id not in name) or (
            wanted is not None and noted.state is not wanted
        ):
            continue
        places = sorted(f"{topic}-{number}" for topic, number in noted.partitions)
        people = output is not Output.JSON
        more = f", and {len(places) - SHOWN_PARTITIONS} more" if len(places) > SHOWN_PARTITIONS else ""
        records.append(
            {
                "transactional_id": name,
                "coordinator": partition,
                "producer_id": noted.producer_id,
                "epoch": noted.epoch,
                "state": noted.state.name.lower().replace("_", "-"),
                "partitions": (
                    (", ".join(places[:SHOWN_PARTITIONS]) + more) or None if people else list(places)
                ),
                "started": utc_ms(noted.started_ms),
                "updated": utc_ms(noted.updated_ms),
                "timeout_ms": noted.timeout_ms,
                "committed": row.committed,
                "aborted": row.aborted,
                "fenced": row.fenced,
                **({} if people else {"client_version": noted.client_version, "jumps": row.jumps}),
            }
        )
    show(sorted(records, key=lambda each: str(each["transactional_id"])), TRANSACTION_COLUMNS, output)
    if not records:
        note("no such transactional id")


def committed(
    context: typer.Context,
    group: Annotated[str | None, typer.Option("--group", help="Only this group.")] = None,
    generations: Annotated[
        bool, typer.Option("--generations", help="Show the groups' last generations in place of offsets.")
    ] = False,
) -> None:
    records: list[dict[str, Cell]] = []
    for _, key, row in rows_of(settings_of(context), committed_log()):
        if isinstance(row, Generation) and generations:
            name = key.removeprefix("g/")
            found: dict[str, Cell] = {
                "group": name,
                "type": row.protocol_type,
                "generation": row.generation,
                "protocol": row.protocol,
                "#members": len(row.members),
                "changed_at": utc_ms(row.at_ms),
            }
        elif isinstance(row, Committed) and not generations:
            name, topic, partition = place_of_key(key)
            found = {
                "group": name,
                "topic": topic,
                "partition": partition,
                "offset": row.offset,
                "committed_at": utc_ms(row.at_ms),
                "commits": row.commits,
                "leader_epoch": None if row.leader_epoch < 0 else row.leader_epoch,
                "metadata": (
                    row.metadata.rstrip("\0") or None
                ),  # confluent-kafka writes the end of its C string too
            }
        else:
            continue
        if group in (None, name):
            records.append(found)
    records.sort(
        key=lambda each: (str(each["group"]), str(each.get("topic")), int(str(each.get("partition", 0))))
    )
    show(records, GROUP_COLUMNS if generations else COMMITTED_COLUMNS, output_of(context))
    if not records:
        note(
            "no group has committed an offset"
            if group is None
            else f"{group} has committed nothing that is still in the log"
        )


def register_transactions(app: typer.Typer) -> None:
    """Add the command to `holdfast producers`."""
    text = (
        "List the transactional ids of every application on the cluster, by the broker's own log: state,"
        " epoch, partitions."
    )
    app.command("transactions", help=text)(transactions)


def register_committed(app: typer.Typer) -> None:
    """Add the command to `holdfast groups`."""
    text = "List what every group has committed and when, or its last generation, by the broker's own log."
    app.command("committed", help=text)(committed)
