"""`holdfast dev`: a real Kafka on this machine, and nothing to install but a JDK."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from holdfast.dev import jars
from holdfast.dev.broker import Cluster, Credentials
from holdfast.errors import DevBrokerError, HoldfastError

app = typer.Typer(help="Run a local Kafka (KRaft, one node or three) for development and tests.", no_args_is_help=True)

DEFAULT_FOLDER = Path(".holdfast/broker")


class Output(StrEnum):
    """Who reads the result."""

    TABLE = "table"
    JSON = "json"


DirOption = Annotated[Path, typer.Option("--dir", help="The folder with the broker's data, logs and state.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people, or for programs.")]


@app.command()
def up(
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="1, or 3 so that one may die. [default: 1, or what the folder holds]")
    ] = None,
    folder: DirOption = DEFAULT_FOLDER,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Port of the first node. [default: a free one]")] = None,
    sasl: Annotated[bool, typer.Option("--sasl", help="Ask clients for SASL/SCRAM over TLS; user holdfast.")] = False,
    password: Annotated[
        str | None, typer.Option("--password", envvar="HOLDFAST_DEV_PASSWORD", help="The password for --sasl. [default: a random one]")
    ] = None,
    server_property: Annotated[
        list[str] | None, typer.Option("--property", "-P", metavar="KEY=VALUE", help="A Kafka server property.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start the broker and return once it answers; it runs on until `holdfast dev down`. Does nothing when it runs already."""
    with _errors_for_people():
        running = Cluster.find(folder)
        if running is not None and all(node.condition == "running" for node in running.status()):
            _say("It runs already; nothing was changed.")
            _show(running, output)
            return
        if running is not None and any(node.condition != "stopped" for node in running.status()):
            raise DevBrokerError(
                f"some nodes in {folder} run and some do not; see `holdfast dev status --dir {folder}`, then `down` and `up`"
            )
        jars.class_path(progress=_say)
        _say("starting Kafka …")
        cluster = Cluster(
            folder,
            nodes=nodes or (len(running.node_ids) if running is not None else 1),
            port=port,
            properties=_pairs(server_property or []),
            sasl=Credentials(password=password) if sasl and password else sasl,
            detached=True,
        )
        _show(cluster.start(), output)


@app.command()
def status(folder: DirOption = DEFAULT_FOLDER, output: OutputOption = Output.TABLE) -> None:
    """Show each node and how to connect. The exit code is 0 when all nodes run, 3 otherwise."""
    with _errors_for_people():
        cluster = Cluster.attach(folder)
        _show(cluster, output)
        if any(node.condition != "running" for node in cluster.status()):
            raise typer.Exit(3)


@app.command()
def down(
    folder: DirOption = DEFAULT_FOLDER,
    purge: Annotated[bool, typer.Option("--purge", help="Remove the folder with all data too.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop the broker; its data stays for the next `up`. Does nothing when none runs."""
    with _errors_for_people():
        cluster = Cluster.find(folder)
        if cluster is None:
            stopped = 0
        else:
            stopped = sum(node.condition != "stopped" for node in cluster.status())
            if purge:
                cluster.purge()
            else:
                cluster.stop()
        purged = purge and cluster is not None
        if output is Output.JSON:
            print(json.dumps({"folder": str(folder), "nodes_stopped": stopped, "purged": purged}))
        else:
            print(f"Stopped {stopped} node{'s' * (stopped != 1)}; {'removed' if purged else 'data stays in'} {folder}")


def _show(cluster: Cluster, output: Output) -> None:
    nodes = cluster.status()
    if output is Output.JSON:
        listed = [{"id": node.node_id, "endpoint": node.endpoint, "condition": node.condition, "pid": node.pid} for node in nodes]
        print(json.dumps({"folder": str(cluster.folder), "kafka": jars.KAFKA_VERSION, "nodes": listed, "client": cluster.client_config()}))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("NODE", "ENDPOINT", "STATE", "PID"):
        table.add_column(name)
    for node in nodes:
        colour = {"running": "green", "paused": "yellow"}.get(node.condition, "red")
        table.add_row(str(node.node_id), node.endpoint, f"[{colour}]{node.condition}[/]", str(node.pid or "-"))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(f"\nKafka {jars.KAFKA_VERSION} in {cluster.folder}", markup=False)
    if cluster.is_secured:
        console.print(f"Clients need the settings in {cluster.client_file}", markup=False)
    if any(node.condition != "stopped" for node in nodes):
        console.print(f"export KAFKA_BOOTSTRAP_SERVERS={cluster.bootstrap}", markup=False)


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise DevBrokerError(f"--property {text!r} is not KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _errors_for_people() -> Iterator[None]:
    try:
        yield
    except HoldfastError as error:
        _say(f"Error: {error}")
        raise typer.Exit(1) from error
