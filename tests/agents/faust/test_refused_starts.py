"""Workers that cannot start: each says why in one line, where and what to do, and leaves in bounded time with
a code that is not 0.

All of a run are started at once, as real processes; a test looks at one of them. Those that are refused by
the broker or for their stores have imported all by then: but for one, they are forked from a process that has
done so too.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from holdfast.clients.topics.application import create_topics
from holdfast.clients.topics.grants import worker_grants
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.kafka.grants import Resource
from holdfast.dev import parent_death
from holdfast.dev.fixtures import SessionBroker
from holdfast.dev.ports import free_ports
from holdfast.kafka.codes import COORDINATOR_MOVES
from tests.support import fork_server
from tests.support.harness import wait_for
from tests.support.parts import part
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.secured import Guarded, environment

SHOP = """
import os

import msgspec

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.processor import Processor


class Count(msgspec.Struct, frozen=True):
    seen: int = 0


def decode(value):
    return value.decode()


def fold({arguments}):
    rows[word] = Count(rows.get(word, Count()).seen + 1)


counts = Processor(name="counts", source=os.environ["SHOP_SOURCE"], decode=decode, fold=fold, row=Count)
app = create_app(processors=[counts])

if __name__ == "__main__":
    app.main()
"""
FAUST = (str(Path(sys.executable).parent / "faust"), "-A", "shop", "worker")
FORKED = (*fork_server.INTERPRETER, "tests.agents.faust.refused_shop", *fork_server.LOOP, "worker")
BUILT_IN = (sys.executable, "-P", "-m", "holdfast.agents", "worker")
QUICK = {
    "HOLDFAST_REQUEST_TIMEOUT_S": "4",
    "HOLDFAST_SESSION_TIMEOUT_S": "4",
    "HOLDFAST_HEARTBEAT_INTERVAL_S": "1",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A way to start a worker that is refused, and the words of its line that say the fault, its position,
    and the cure.
    """

    says: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = FAUST
    topics: bool = True
    prepare: Callable[[Places], Mapping[str, str]] = lambda places: {}


@dataclass(frozen=True, slots=True)
class Places:
    """The things that one worker has of its own: its folder, its topics' names, and the clusters."""

    folder: Path
    settings: Settings
    source: str
    broker: SessionBroker
    guarded: Guarded


@dataclass(frozen=True, slots=True)
class Left:
    """The things that a worker left."""

    code: int
    said: str


def _file_for_data(places: Places) -> Mapping[str, str]:
    (places.folder / "afile").touch()
    return {"HOLDFAST_DATA_DIR": str(places.folder / "afile")}


def _closed_folder(places: Places) -> Mapping[str, str]:
    closed = places.folder / "closed"
    closed.mkdir(mode=0o500)
    return {
        "HOLDFAST_DATA_DIR": "/sys/holdfast" if os.geteuid() == 0 else str(closed / "data")
    }  # root may write anywhere else


def _binary_settings(places: Places) -> Mapping[str, str]:
    (places.folder / "binary.toml").write_bytes(b"web_port = [\x00\xff")
    return {"HOLDFAST_CONFIG": str(places.folder / "binary.toml")}


def _small_changelog(places: Places) -> Mapping[str, str]:
    _topics(places, changelog_config={"max.message.bytes": "100000"})
    return {}


def _fewer_partitions(places: Places) -> Mapping[str, str]:
    _topics(places, changelog_partitions=1)
    return {}


def _wrong_password(places: Places) -> Mapping[str, str]:
    return environment({**places.guarded.root(), "sasl.password": "wrong"})


def _no_rights(places: Places) -> Mapping[str, str]:
    return environment(places.guarded.principal(f"nobody-{uuid.uuid4().hex[:8]}"))


def _no_group(places: Places) -> Mapping[str, str]:
    at_home = Places(
        places.folder,
        Settings(app=places.settings.app, kafka=places.guarded.root()),
        places.source,
        _guarded(places),
        places.guarded,
    )
    counts = _topics(at_home)
    name = f"nobody-{uuid.uuid4().hex[:8]}"
    kafka = places.guarded.principal(name)
    grants = worker_grants(places.settings, [counts])
    places.guarded.grant(name, [grant for grant in grants if grant.resource is not Resource.GROUP])
    return environment(kafka)


def _guarded(places: Places) -> SessionBroker:
    return SessionBroker(config=places.guarded.root())


def _taken_port(places: Places) -> Mapping[str, str]:
    TAKEN.listen()
    return {"HOLDFAST_WEB_PORT": str(TAKEN.getsockname()[1])}


def _used_store(places: Places) -> Mapping[str, str]:
    folder = places.folder / "data" / "counts.v1" / "0"
    folder.parent.mkdir(parents=True)
    program = (
        "import sys; from rocksdict import Rdict; held = Rdict(sys.argv[1]); print('held', flush=True);"
        " sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-P", "-c", program, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    HOLDERS.append(holder)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return {}


TAKEN = socket.socket()
HOLDERS: list[subprocess.Popen[str]] = []

REFUSALS = {
    "data_dir is a file": Refusal(
        ("data_dir is", "afile, which is a file: name a folder"), prepare=_file_for_data, topics=False
    ),
    "data_dir cannot be written": Refusal(
        ("data_dir is", "cannot be used", "name a folder"), prepare=_closed_folder, topics=False
    ),
    "a setting is no number": Refusal(
        ("shop.py:23: environment HOLDFAST_WEB_PORT: web_port cannot be 'x'",),
        {"HOLDFAST_WEB_PORT": "x"},
        topics=False,
    ),
    "a setting of the built-in application": Refusal(
        ("holdfast: environment HOLDFAST_WEB_PORT: web_port cannot be 'x'",),
        {"HOLDFAST_WEB_PORT": "x"},
        BUILT_IN,
        topics=False,
    ),
    "the settings are binary": Refusal(
        ("binary.toml: is not valid TOML",), prepare=_binary_settings, topics=False
    ),
    "the settings are missing": Refusal(
        ("file nowhere.toml: cannot be read",), {"HOLDFAST_CONFIG": "nowhere.toml"}, topics=False
    ),
    "an option of faust": Refusal(
        ("--web-port", "HOLDFAST_WEB_PORT=7000"), command=(*FAUST, "--web-port", "7000"), topics=False
    ),
    "topics are missing": Refusal(
        ("does not exist (source)", "holdfast topics create --partitions"), topics=False
    ),
    "a changelog takes too little": Refusal(
        ("counts.v1-changelog", "max.message.bytes"), command=FORKED, prepare=_small_changelog, topics=False
    ),
    "a changelog has too few partitions": Refusal(
        ("counts.v1-changelog", "1 partition", "2"), command=FORKED, prepare=_fewer_partitions, topics=False
    ),
    "no broker": Refusal(
        ("no Kafka broker at 127.0.0.1:1 answered within 4 s", "check bootstrap.servers"),
        {"HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", **QUICK},
        FORKED,
        topics=False,
    ),
    "a wrong password": Refusal(
        ("cannot log in to Kafka", "check the sasl."), command=FORKED, prepare=_wrong_password, topics=False
    ),
    "no rights": Refusal(
        ("does not exist (source)", "holdfast acls"), command=FORKED, prepare=_no_rights, topics=False
    ),
    "no right to the group": Refusal(
        ("cannot take part in its group", "holdfast acls"), command=FORKED, prepare=_no_group, topics=False
    ),
    "the web port is taken": Refusal(
        ("cannot listen on 127.0.0.1 port", "set web_port (`holdfast worker --port`) and web_bind"),
        command=FORKED,
        prepare=_taken_port,
    ),
    "another process has the stores": Refusal(
        (
            (
                "is in use by another process: give each worker a data_dir of its own (`holdfast worker"
                " --data-dir`)"
            ),
        ),
        command=FORKED,
        prepare=_used_store,
    ),
    "a fold with one argument": Refusal(
        ("shop.py:22: processor counts: fold takes (rows)",), {"SHOP_ARGUMENTS": "rows"}, topics=False
    ),
}


def _topics(
    places: Places, changelog_partitions: int = 2, changelog_config: Mapping[str, str] | None = None
) -> Processor[Any, Any]:
    settings, source, broker = places.settings, places.source, places.broker
    counts: Processor[Any, Any] = Processor(
        name="counts", source=source, decode=bytes, fold=lambda rows, event, at_ms: None, row=int
    )
    kept = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}  # or a warning is a second line
    broker.create_topic(source, partitions=2, config=kept, exact=True)
    create_topics(settings, [counts])
    if changelog_partitions == 2 and not changelog_config:
        return counts
    changelog = counts.changelog(settings.app)
    broker.delete_topics([changelog])
    config = {
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
        **(changelog_config or {}),
    }
    broker.create_topic(changelog, partitions=changelog_partitions, config=config, exact=True)
    return counts


@pytest.fixture(scope="module")
@part("process")
def left(
    request: pytest.FixtureRequest,
    broker: SessionBroker,
    guarded_broker: Guarded,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Left]]:
    """Start all of the workers at the same time; return the things that each left."""
    TAKEN.bind(("127.0.0.1", 0))
    asked = [each.nodeid for each in request.session.items]
    names = [name for name in REFUSALS if any(each.endswith(f"[{name}]") for each in asked)]
    folders = {name: tmp_path_factory.mktemp("refused") for name in names}
    processes: dict[str, fork_server.Process] = {}
    _wait_for_coordinator(broker)
    try:
        for name in names:
            processes[name] = _start(REFUSALS[name], folders[name], broker, guarded_broker)
        yield {
            name: Left(process.wait(DEADLINE_S), (folders[name] / "said").read_text())
            for name, process in processes.items()
        }
    finally:
        TAKEN.close()
        for each in processes.values():
            each.kill()
            each.wait()
        for holder in HOLDERS:
            holder.kill()
            holder.communicate()


def _start(refusal: Refusal, folder: Path, broker: SessionBroker, guarded: Guarded) -> fork_server.Process:
    kafka = {name: str(value) for name, value in broker.config.items()}
    settings = Settings(app=f"refused-{uuid.uuid4().hex[:8]}", kafka=kafka)
    places = Places(folder, settings, f"{settings.app}-in", broker, guarded)
    (folder / "shop.py").write_text(
        SHOP.format(arguments=refusal.environment.get("SHOP_ARGUMENTS", "rows, word, at_ms"))
    )
    if refusal.topics:
        _topics(places)
    own = {
        "SHOP_SOURCE": places.source,
        "HOLDFAST_APP": settings.app,
        "HOLDFAST_DATA_DIR": str(folder / "data"),
        "HOLDFAST_WEB_PORT": str(free_ports(1)[0]),
        **environment(kafka),
        **refusal.prepare(places),
        **refusal.environment,
    }
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOLDFAST_", "PYTHON", "KAFKA_", "F_"))
    }
    with (folder / "said").open("wb") as said, Path(os.devnull).open("wb") as nowhere:
        if refusal.command is FORKED:
            python = {name: value for name, value in fork_server.BEGUN.items() if name.startswith("PYTHON")}
            env = {**plain, **python, "PYTHONPATH": str(ROOT), **own}
            return fork_server.start(FORKED, env=env, cwd=folder, out=nowhere, errors=said)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *refusal.command],
            env={**plain, **own},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )


def _wait_for_coordinator(broker: SessionBroker) -> None:
    """Return when the broker serves groups: a new one makes their topic when it is first asked, and
    aiokafka logs that as an error.
    """
    consumer = Consumer(broker.client_config(**{"group.id": f"refused-{uuid.uuid4().hex[:8]}"}))

    def answers() -> bool:
        try:
            consumer.committed([TopicPartition("none", 0)], timeout=60)
        except KafkaException as error:
            if error.args[0].code() in COORDINATOR_MOVES:
                return False
            raise
        return True

    try:
        wait_for("a coordinator", answers, DEADLINE_S)
    finally:
        consumer.close()


@pytest.mark.variants(
    "data_dir cannot be written", "the settings are missing", "a setting of the built-in application"
)
@pytest.mark.parametrize("name", REFUSALS)
def test_a_worker_that_cannot_start_says_why_in_one_line(left: dict[str, Left], name: str) -> None:
    found = left[name]
    assert found.code == 1, found.said
    assert len(found.said.splitlines()) == 1, found.said
    assert [words for words in REFUSALS[name].says if words not in found.said] == [], found.said
