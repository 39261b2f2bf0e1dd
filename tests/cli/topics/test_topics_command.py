"""`holdfast topics` against a real broker, as a person or a script runs it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.dev.fixtures import SessionBroker
from tests.support import fork_server
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

MODULE = """
import msgspec
from holdfast.core.engine.declared.processor import Processor


class Row(msgspec.Struct, frozen=True):
    seen: int = 0


def fold(rows, event, at_ms):
    rows["all"] = Row(rows.get("all", Row()).seen + 1)


def processors(settings):
    return [Processor(name="totals", source=settings.app + "-orders", decode=bytes, fold=fold, row=Row, emits=(settings.app + "-big",))]


def hanging(settings):
    return [Processor(name="totals", source=settings.app + "-orders", decode=bytes, fold=fold, row=Row, emits=("__marshal",))]
"""  # noqa: E501


class Shop:
    """A user's project in its own folder, with an application id of its own."""

    def __init__(self, folder: Path, broker: SessionBroker) -> None:
        self.app = f"shop-{ending()}"
        self._folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "shop.py").write_text(MODULE)
        kafka = "".join(f"'{name}' = '{value}'\n" for name, value in broker.config.items())
        (folder / "holdfast.toml").write_text(f"[holdfast]\napp = '{self.app}'\n[kafka]\n{kafka}")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "KAFKA_"))
        }
        return fork_server.run(
            [*fork_server.INTERPRETER, fork_server.COMMAND, "topics", *arguments],
            env=clean,
            cwd=self._folder,
            timeout=DEADLINE_S,
        )

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "-A", "shop", "--output", "json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


MakeShop = Callable[[str], Shop]


@pytest.fixture
def make_shop(tmp_path: Path, broker: SessionBroker) -> Iterator[MakeShop]:
    """Give a maker of projects; their topics are deleted at the end."""
    made: list[Shop] = []

    def make(name: str) -> Shop:
        made.append(Shop(tmp_path / name, broker))
        return made[-1]

    yield make
    for project in made:
        broker.delete_topics([row["topic"] for row in project.json("list") if row["exists"]])


@pytest.fixture
def shop(make_shop: MakeShop) -> Shop:
    """Give one project."""
    return make_shop("shop")


def test_from_nothing_to_a_checked_application(shop: Shop) -> None:
    before = shop.run("check", "-A", "shop")
    assert before.returncode == 1
    assert "does not exist (source)" in before.stdout
    assert "run `holdfast -A shop topics create --partitions N`" in before.stdout, "as one must type it"

    refused = shop.run("create", "-A", "shop")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"topic {shop.app}-orders does not exist" in refused.stderr
    assert "--partitions N" in refused.stderr

    planned = shop.run("create", "-A", "shop", "--partitions", "3", "--dry-run")
    assert planned.returncode == 0
    assert shop.run("check", "-A", "shop").returncode == 1, "a dry run changes nothing"

    created = shop.run("create", "-A", "shop", "--partitions", "3")
    assert (created.returncode, created.stdout) == (0, planned.stdout)

    again = shop.run("create", "-A", "shop")
    assert (again.returncode, again.stderr) == (0, "nothing to do: every topic exists\n")
    more = shop.run("create", "-A", "shop", "--partitions", "8")
    assert more.stderr == "nothing to do: every topic exists; --partitions 8 is for topics that do not\n"

    after = shop.run("check", "-A", "shop")
    assert (after.returncode, after.stderr) == (0, "every topic is as it should be\n")


def test_list_shows_existing_and_missing_topics(shop: Shop) -> None:
    assert {(row["role"], row["exists"], row["partition_count"]) for row in shop.json("list")} == {
        ("source", False, None),
        ("changelog", False, None),
        ("emit", False, None),
        ("quarantine", False, None),
        ("workers", False, None),
        ("skips", False, None),
    }
    shop.run("create", "-A", "shop", "--partitions", "2")
    rows = {row["role"]: row for row in shop.json("list")}
    assert rows["changelog"]["topic"] == f"{shop.app}-totals.v1-changelog"
    assert rows["changelog"]["configs"]["cleanup.policy"] == "compact"
    assert [*rows["changelog"]] == [
        "topic",
        "role",
        "exists",
        "partition_count",
        "replication_factor",
        "configs",
    ]
    table = shop.run("list", "-A", "shop").stdout.splitlines()
    assert table[0].split() == ["TOPIC", "ROLE", "PARTITION-COUNT", "REPLICATION-FACTOR", "CONFIGS"]
    for role in ("workers", "skips"):
        assert [line.split()[1:4] for line in table[1:] if line.startswith(f"{shop.app}-{role}")] == [
            [role, "1", "1"]
        ]


def test_list_all_shows_foreign_topics_too(make_shop: MakeShop) -> None:
    mine, other = make_shop("mine"), make_shop("other")
    for project in (mine, other):
        assert project.run("create", "-A", "shop", "--partitions", "1").returncode == 0
    roles = {row["topic"]: row["role"] for row in mine.json("list", "--all")}
    assert roles[f"{other.app}-orders"] is None
    assert roles[f"{mine.app}-orders"] == "source"
    assert f"{other.app}-orders" not in {row["topic"] for row in mine.json("list")}


def test_describe_shows_each_partition_with_kafkas_columns(shop: Shop) -> None:
    shop.run("create", "-A", "shop", "--partitions", "2")
    done = shop.run("describe", "-A", "shop", f"{shop.app}-orders")
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "TOPIC",
        "PARTITION",
        "LEADER",
        "REPLICAS",
        "ISR",
        "LOG-START-OFFSET",
        "LOG-END-OFFSET",
    ]
    assert [line.split() for line in lines[1:]] == [
        [f"{shop.app}-orders", str(partition), "1", "1", "1", "0", "0"] for partition in (0, 1)
    ]
    assert len(shop.json("describe")) == 2 + 2 + 2 + 2 + 1 + 1, (
        "without names, every topic of the application"
    )
    absent = shop.run("describe", "-A", "shop", "absent")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "topic absent does not exist" in absent.stderr


def test_check_separates_errors_from_warnings_by_the_exit_code(shop: Shop, broker: SessionBroker) -> None:
    broker.create_topic(
        f"{shop.app}-orders",
        partitions=2,
        config={"message.timestamp.type": "CreateTime", "retention.ms": "-1"},
        exact=True,
    )
    created = shop.run("create", "-A", "shop")
    assert created.returncode == 0
    assert "warning: topic" in created.stderr
    assert "CreateTime" in created.stderr
    assert shop.run("check", "-A", "shop").returncode == 0
    assert shop.run("check", "-A", "shop", "--strict").returncode == 1
    (finding,) = shop.json("check")
    assert [*finding] == ["severity", "topic", "message", "remedy"]
    assert (finding["severity"], finding["topic"]) == ("warning", f"{shop.app}-orders")
    altered = shop.json("create", "--alter")
    assert [(row["action"], row["topic"], row["configs"]) for row in altered] == [
        ("alter", f"{shop.app}-orders", {"message.timestamp.type": "LogAppendTime"})
    ]
    assert shop.run("check", "-A", "shop", "--strict").returncode == 0


def test_create_fails_when_what_exists_does_not_fit(shop: Shop, broker: SessionBroker) -> None:
    broker.create_topic(
        f"{shop.app}-totals.v1-changelog", partitions=3, config={"cleanup.policy": "compact"}, exact=True
    )
    done = shop.run("create", "-A", "shop", "--partitions", "2")
    assert done.returncode == 1
    assert "has 3 partitions but its source" in done.stderr
    assert "1 error(s) remain" in done.stderr.splitlines()[-1]


def test_processors_that_are_wired_wrongly_are_refused_before_anything_is_created(shop: Shop) -> None:
    done = shop.run("create", "-A", "shop:hanging", "--partitions", "1")
    assert done.returncode == 1
    assert "__marshal" in done.stderr
    assert "hang" in done.stderr
    assert not any(row["exists"] for row in shop.json("list"))
