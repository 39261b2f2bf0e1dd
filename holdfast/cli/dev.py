"""`holdfast dev`: a Kafka on this machine, Apache Kafka itself (only a JDK must be installed) or the embedded
one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.command_group import CommandGroup
from holdfast.cli.options.context import output_of
from holdfast.cli.output import Cell, Output, note, show, show_json
from holdfast.dev.broker import jars
from holdfast.dev.broker.cluster import Cluster, Credentials
from holdfast.dev.embedded_process import EmbeddedFault, EmbeddedGuard, EmbeddedProcess, EmbeddedStart
from holdfast.embedded.configs.broker import AUTO_CREATE, PARTITIONS, settings_of
from holdfast.embedded.kafka import NOTICE
from holdfast.embedded.security.acl_lines import rules_of_lines
from holdfast.errors import ConfigError, DevBrokerError

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, add_completion=False)

DEFAULT_FOLDER = Path(".holdfast/broker")

_PLACES: Mapping[str, tuple[str, ...]] = {
    "move": ("topic", "partition"),
    "corrupt": ("topic", "partition", "offset"),
    "forget": ("group", "member"),
    **dict.fromkeys(("markers", "disk", "clock", "none", "kill", "revive"), ()),
}
"""The words that locate faults of the broker; faults of answers may name a request."""

DirOption = Annotated[Path, typer.Option("--dir", help="The folder with the broker's data, logs and state.")]


NodesOption = Annotated[
    int | None,
    typer.Option(min=1, help="1, or 3 so that one may die. [default: what the folder holds, else 1]"),
]
PortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Port of the first node. [default: a free one]")
]
SaslOption = Annotated[
    bool,
    typer.Option("--sasl", help="Require SASL/SCRAM over TLS of every client; the user is holdfast."),
]
PasswordOption = Annotated[
    str | None, typer.Option(envvar="HOLDFAST_DEV_PASSWORD", help="For --sasl. [default: a random one]")
]
EmbeddedOption = Annotated[
    bool,
    typer.Option(
        "--embedded",
        help=(
            "Start the embedded Kafka instead: no JDK, ready in a second, records in memory until it is"
            " stopped."
        ),
    ),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--folder", help="For --embedded: keep topics, records, groups and transactions in this folder."
    ),
]
FsyncOption = Annotated[
    bool,
    typer.Option(
        "--fsync",
        help="For --folder: answer once a write is on the disk, so that it survives a power cut.",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(help="For --embedded: the same ids and the same faults at each start with this number."),
]
UsersOption = Annotated[
    Path | None,
    typer.Option(help="For --embedded --sasl: a file of more users, a line NAME=PASSWORD each."),
]
AclsOption = Annotated[
    Path | None,
    typer.Option(
        help=(
            "For --embedded --sasl: a file with the rights of the users, as `holdfast acls ROLE --principal`"
            " prints it."
        )
    ),
]
AutoCreateOption = Annotated[
    bool,
    typer.Option(
        "--auto-create",
        help="Make topics when clients ask for them first: the property auto.create.topics.enable.",
    ),
]
PartitionsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Of topics that say nothing else: the property num.partitions."),
]
PropertiesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        metavar="NAME=VALUE",
        help="A Kafka server property; may be repeated. The embedded Kafka has some of them.",
    ),
]


@app.command(
    help=(
        "Start Kafka and return once it answers; it runs on until `holdfast dev down`. Does nothing when it"
        " runs already."
    )
)
def up(
    context: typer.Context,
    nodes: NodesOption = None,
    folder: DirOption = DEFAULT_FOLDER,
    port: PortOption = None,
    sasl: SaslOption = False,
    password: PasswordOption = None,
    embedded: EmbeddedOption = False,
    kept_in: FolderOption = None,
    fsync: FsyncOption = False,
    seed: SeedOption = None,
    users: UsersOption = None,
    acls: AclsOption = None,
    auto_create: AutoCreateOption = False,
    partitions: PartitionsOption = None,
    server_properties: PropertiesOption = None,
) -> None:
    guarded, guard = embedded and sasl, "--embedded --sasl"
    _refuse_lonely(
        ("--password", password, "--sasl", sasl, "a broker without SASL asks for no password"),
        ("--users", users, guard, guarded, "only the embedded Kafka has users to add"),
        ("--acls", acls, guard, guarded, "only users of the embedded Kafka have rights"),
        ("--folder", kept_in, "--embedded", embedded, "Apache Kafka keeps its data in --dir"),
        ("--fsync", fsync, "--embedded", embedded, "Apache Kafka is told by --property"),
        ("--seed", seed is not None, "--embedded", embedded, "Apache Kafka leaves nothing to a seed"),
        ("--fsync", fsync, "--folder F", kept_in, "there is nothing to sync"),
    )
    wanted, output = _pairs(server_properties or []), output_of(context)
    wanted |= {AUTO_CREATE: "true"} if auto_create else {}
    wanted |= {} if partitions is None else {PARTITIONS: str(partitions)}
    if embedded:
        users_told = _guard(password, users, acls) if sasl else None
        kept = None if kept_in is None else kept_in.absolute()
        settings_of(wanted)  # a wrong one is reported before anything starts
        told = EmbeddedStart(guard=users_told, folder=kept, fsync=fsync, seed=seed, properties=wanted)
        _up_embedded(folder, told, nodes, port, output)
    else:
        credentials = Credentials(password=password) if password else sasl
        _up_apache(folder, wanted, credentials, nodes, port, output)


def _refuse_lonely(*options: tuple[str, object, str, object, str]) -> None:
    """Refuse each option that is given without the one that it is for: (option, its value, of which, that
    value, why).
    """
    for option, value, needs, other, why in options:
        if value and not other:
            raise ConfigError(f"{option} without {needs}: {why}; add {needs}, or leave it out")


def _up_embedded(
    folder: Path,
    told: EmbeddedStart,
    nodes: int | None,
    port: int | None,
    output: Output,
) -> None:
    _refuse_beside(Cluster.find(folder), folder)
    running = _running_embedded(folder)
    if running is not None:
        _refuse_another(running, told, folder)
    _show_embedded(running or EmbeddedProcess.start(folder, nodes=nodes or 1, port=port, told=told), output)


def _up_apache(
    folder: Path,
    wanted: dict[str, str],
    sasl: Credentials | bool,
    nodes: int | None,
    port: int | None,
    output: Output,
) -> None:
    if _running_embedded(folder) is not None:
        raise DevBrokerError(f"an embedded Kafka runs in {folder}; `holdfast dev down --dir {folder}` first")
    existing = Cluster.find(folder)
    if existing is not None and _all_run(
        existing, folder, nodes=nodes, port=port, sasl=bool(sasl), wanted=wanted
    ):
        note("Kafka runs already")
        _show(existing, output)
        return
    jars.class_path(progress=note)
    note("starting Kafka …")
    cluster = Cluster(
        folder,
        nodes=nodes or (len(existing.node_ids) if existing is not None else 1),
        port=port,
        properties=wanted,
        sasl=sasl,
        detached=True,
    )
    _show(cluster.start(), output)


def _all_run(
    existing: Cluster,
    folder: Path,
    *,
    nodes: int | None,
    port: int | None,
    sasl: bool,
    wanted: dict[str, str],
) -> bool:
    """Return whether the broker runs as asked; one that runs otherwise is an error, for `up` changes no
    running broker.
    """
    status = existing.status()
    if all(node.condition == "stopped" for node in status):
        return False
    advice = f"`holdfast dev down --dir {folder}` first"
    if idle := [f"{node.node_id} is {node.condition}" for node in status if node.condition != "running"]:
        raise DevBrokerError(f"in {folder} node {', '.join(idle)} and others run; {advice}")
    differs = {
        "--nodes": nodes not in (None, len(status)),
        "--port": port is not None and not status[0].endpoint.endswith(f":{port}"),
        "--sasl": sasl and not existing.is_secured,
        "--property": not wanted.items() <= existing.server_properties.items(),
    }
    if changed := [option for option, differing in differs.items() if differing]:
        raise DevBrokerError(
            f"Kafka runs already in {folder}, with another {' and '.join(changed)}; {advice}"
        )
    return True


@app.command(help="Show each node and how to connect. Exit code 1 unless all nodes run.")
def status(context: typer.Context, folder: DirOption = DEFAULT_FOLDER) -> None:
    embedded = EmbeddedProcess.find(folder)
    if embedded is not None:
        _show_embedded(embedded, output_of(context))
        raise typer.Exit(0 if embedded.is_running else 1)
    cluster = Cluster.attach(folder)
    _show(cluster, output_of(context))
    if any(node.condition != "running" for node in cluster.status()):
        raise typer.Exit(1)


@app.command(help="Stop Kafka; its data stays for the next `up`. Does nothing when it does not run.")
def down(
    context: typer.Context,
    folder: DirOption = DEFAULT_FOLDER,
    purge: Annotated[bool, typer.Option("--purge", help="Remove its data and settings too.")] = False,
) -> None:
    cluster = Cluster.find(folder)
    embedded = EmbeddedProcess.find(folder)
    stopped = 0 if embedded is None else len(embedded.status()) * embedded.stop()
    if cluster is not None:
        stopped += sum(node.condition != "stopped" for node in cluster.status())
        if purge:
            cluster.purge()
        else:
            cluster.stop()
    if output_of(context) is Output.JSON:
        show_json({"folder": str(folder), "nodes_stopped": stopped, "purged": purge and cluster is not None})
        return
    print(f"stopped {stopped} node{'s' * (stopped != 1)}; {_fate(folder, cluster, embedded, purge=purge)}")


def _fate(folder: Path, cluster: Cluster | None, embedded: EmbeddedProcess | None, *, purge: bool) -> str:
    """Return the remark on the data after the end."""
    if embedded is not None and embedded.kept_in is not None:
        return f"data stays in {embedded.kept_in}"
    if cluster is not None:
        return f"{'removed' if purge else 'data stays in'} {folder}"
    nothing = "nothing was ever started in" if embedded is None else "it held its records in memory, not in"
    return f"{nothing} {folder}"


@app.command(
    help=(
        "Make the embedded Kafka fail: answers drop, cut, delay, repeat or reorder; markers lost; disk full;"
        " clock moved by --ms; a broker of three to kill or revive; a leader, and with it a coordinator, to"
        " move; a stored batch to corrupt; a member of a classic group to forget. `none` ends all of these"
        " except dead brokers."
    )
)
def fault(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="One of those above.")],
    where: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHERE]...",
            help=(
                "For answers: the request that they reply to (EndTxn, Fetch, ...) [default: any]. For move:"
                " TOPIC PARTITION. For corrupt: TOPIC PARTITION OFFSET. For forget: GROUP MEMBER."
            ),
        ),
    ] = None,
    folder: DirOption = DEFAULT_FOLDER,
    times: Annotated[int, typer.Option(min=1, help="How many answers, or markers.")] = 1,
    skip: Annotated[int, typer.Option(min=0, help="How many answers to leave alone first.")] = 0,
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="The probability with which each is hit.")
    ] = 1.0,
    ms: Annotated[int, typer.Option(help="How late an answer is, or how far the clock moves.")] = 100,
    client: Annotated[str, typer.Option(help="Only clients whose id begins with this.")] = "",
    node: Annotated[int, typer.Option(min=0, help="Which broker to kill or revive.")] = 0,
) -> None:
    places = _where(kind, where or [])
    embedded = _running_embedded(folder)
    if embedded is None:
        raise DevBrokerError(
            f"no embedded Kafka runs in {folder}; `holdfast dev up --embedded --dir {folder}` starts one"
        )
    embedded.fault(
        EmbeddedFault(
            kind=kind,
            **places,
            client=client,
            skip=skip,
            times=times,
            share=share,
            delay_ms=ms,
            node=node,
        )
    )
    note(
        f"the embedded Kafka in {folder} goes wrong: {kind}"
        if kind != "none"
        else "nothing goes wrong any more"
    )


def _where(kind: str, words: list[str]) -> dict[str, Any]:
    """Return the location of a fault in *words*."""
    names = _PLACES.get(kind, ("api",))
    of_any_answer = kind not in _PLACES and not words
    if len(words) != len(names) and not of_any_answer:
        wanted = " ".join(each.upper() for each in names)
        raise ConfigError(
            f"fault {' '.join([kind, *words])}: {kind} takes {wanted or 'no further words'}"
            + ("" if kind in _PLACES else ", or nothing for answers to any")
        )
    found: dict[str, Any] = {}
    for name, word in zip(names, words, strict=False):
        is_number = name in ("partition", "offset")
        if is_number and not word.isdecimal():
            raise ConfigError(
                f"fault {' '.join([kind, *words])}: {word!r} is no {name}: write a number from 0"
            )
        found[name] = int(word) if is_number else word
    return found


def _running_embedded(folder: Path) -> EmbeddedProcess | None:
    found = EmbeddedProcess.find(folder)
    return found if found is not None and found.is_running else None


def _refuse_another(running: EmbeddedProcess, told: EmbeddedStart, folder: Path) -> None:
    advice = f"`holdfast dev down --dir {folder}` first"
    if (told.guard is not None) is not running.is_guarded:
        how = "with" if running.is_guarded else "without"
        raise DevBrokerError(f"an embedded Kafka runs already in {folder}, {how} --sasl; {advice}")
    if told.folder != running.kept_in:
        where = running.kept_in or "memory"
        raise DevBrokerError(
            f"an embedded Kafka runs already in {folder}, with its records in {where}; {advice}"
        )
    if told.seed not in (None, running.seed):
        how = "without a seed" if running.seed is None else f"with the seed {running.seed}"
        raise DevBrokerError(f"an embedded Kafka runs already in {folder}, {how}; {advice}")
    others = [
        f"{name}={value}" for name, value in told.properties.items() if running.server_property(name) != value
    ]
    if others:
        raise DevBrokerError(
            f"an embedded Kafka runs already in {folder}, without {', '.join(others)}; {advice}"
        )


def _guard(password: str | None, users: Path | None, acls: Path | None) -> EmbeddedGuard:
    first = {"holdfast": password or secrets.token_urlsafe(18)}
    return EmbeddedGuard(
        users=first | (_pairs(_lines(users), "--users") if users is not None else {}),
        acls=None if acls is None else tuple(rules_of_lines(_lines(acls))),
    )


def _lines(path: Path) -> list[str]:
    try:
        return [each for each in path.read_text(encoding="utf-8").splitlines() if each.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _refuse_beside(cluster: Cluster | None, folder: Path) -> None:
    if cluster is not None and any(node.condition != "stopped" for node in cluster.status()):
        raise DevBrokerError(f"Kafka runs in {folder}; `holdfast dev down --dir {folder}` first")


def _show_embedded(embedded: EmbeddedProcess, output: Output) -> None:
    nodes: list[dict[str, Cell]] = [
        {"node": node.node_id, "endpoint": node.endpoint, "state": node.condition, "pid": node.pid}
        for node in embedded.status()
    ]
    if output is Output.JSON:
        client: dict[str, Cell] = dict(embedded.client_config)
        show_json({"folder": str(embedded.folder), "kafka": "embedded", "nodes": nodes, "client": client})
        return
    show(nodes, ("node", "endpoint", "state", "pid"), output)
    note(NOTICE)
    if embedded.kept_in is not None:
        note(f"data in {embedded.kept_in}")
    if embedded.is_guarded:
        note(f"clients need the properties in {embedded.client_file}")
    if embedded.is_running:
        note(f"export KAFKA_BOOTSTRAP_SERVERS={embedded.bootstrap}")


def _show(cluster: Cluster, output: Output) -> None:
    nodes: list[dict[str, Cell]] = [
        {"node": node.node_id, "endpoint": node.endpoint, "state": node.condition, "pid": node.pid}
        for node in cluster.status()
    ]
    if output is Output.JSON:
        client: dict[str, Cell] = dict(cluster.client_config())
        show_json(
            {"folder": str(cluster.folder), "kafka": jars.KAFKA_VERSION, "nodes": nodes, "client": client}
        )
        return
    show(nodes, ("node", "endpoint", "state", "pid"), output)
    note(f"Kafka {jars.KAFKA_VERSION}, data in {cluster.folder}")
    if cluster.is_secured:
        note(f"clients need the properties in {cluster.client_file}")
    if any(node["state"] != "stopped" for node in nodes):
        note(f"export KAFKA_BOOTSTRAP_SERVERS={cluster.bootstrap}")


def _pairs(texts: list[str], option: str = "--property") -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            example = "message.max.bytes=2000000" if option == "--property" else "shop=secret"
            shown = text if option == "--property" else "a line"
            raise ConfigError(f"{option} {shown}: write NAME=VALUE, for example {example}")
        pairs[name.strip()] = value.strip()
    return pairs
