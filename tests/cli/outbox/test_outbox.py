"""`holdfast outbox` on a database of its own: made, checked, looked into, mended, removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from holdfast.cli.__main__ import main
from holdfast.clients import OutboxRecord
from holdfast.dev.databases.servers import Postgres
from holdfast.outbox.schema.layouts import layout_named
from tests.outbox.databases import FreshOutbox

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def outbox(tmp_path: Path) -> FreshOutbox:
    """Name an outbox that is not made yet."""
    return FreshOutbox(
        url=f"sqlite:///{tmp_path / 'shop.db'}", table="outbox", layout=layout_named("holdfast")
    )


@pytest.fixture
def run(outbox: FreshOutbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("HOLDFAST_OUTBOX_DATABASE", outbox.url)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["outbox", *arguments])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


def write(outbox: FreshOutbox, *keys: str) -> None:
    with Session(outbox.engine()) as session, session.begin():
        outbox.writer().write_many(
            session, [OutboxRecord(topic="orders", key=key, value="v") for key in keys]
        )


def set_aside(outbox: FreshOutbox, count: int) -> None:
    with outbox.rows() as rows:
        for row in rows.take(count):
            rows.set_aside(row, f"message of {row.key!r}\nis too large")


@pytest.mark.parametrize(
    "asked", [("check",), ("status",), ("quarantine", "list"), ("quarantine", "retry", "--all")]
)
def test_asking_for_a_mistyped_file_makes_no_database(
    asked: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    code, _, said = run(*asked)
    assert (code, said.count("\n")) == (1, 1)
    assert "shop.db: there is no such file; check the URL, or make the outbox" in said
    assert [*tmp_path.iterdir()] == []


@pytest.mark.long
def test_an_outbox_is_made_checked_and_removed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()
    code, _, said = run("check")
    assert (code, "has 4 problem(s)" in said) == (1, True)
    code, _, said = run("status")
    assert (code, "table outbox is missing" in said, "`holdfast outbox init --layout holdfast" in said) == (
        1,
        True,
        True,
    )
    assert run("init") == (0, "", "the outbox outbox is ready (layout holdfast)\n")
    assert run("init")[0] == 0
    assert run("check") == (0, "", "the outbox outbox is as the layout holdfast must be\n")
    assert json.loads(run("check", "-o", "json")[1]) == []
    assert run("init", "--remove")[2] == "the outbox outbox is removed (layout holdfast)\n"
    code, told, _ = run("check", "-o", "json")
    assert (code, json.loads(told)[0]) == (1, {"problem": "table outbox is missing"})


@pytest.mark.long
def test_what_check_misses_init_makes_but_the_outbox_itself(run: Run, outbox: FreshOutbox) -> None:
    run("init")
    with outbox.engine().begin() as connection:
        connection.exec_driver_sql("DROP TABLE outbox_lease")
    assert "`holdfast outbox init --layout holdfast --table outbox` makes what is missing" in run("check")[2]
    assert run("init") == (0, "", "the outbox outbox is ready (layout holdfast)\n")
    assert run("check")[0] == 0
    with outbox.engine().begin() as connection:
        connection.exec_driver_sql("DROP TABLE outbox")
    code, _, said = run("init")
    assert (code, said.count("\n"), "table outbox was dropped: it was there" in said) == (1, 1, True)
    assert run("init", "--remove")[0] == 0


@pytest.mark.parametrize("asked", ["init", "check", "status"])
def test_a_url_that_cannot_be_used_is_said_in_a_line(asked: str, run: Run) -> None:
    for url, part in (
        ("postgresql://h/d?nonsense=1", "the driver psycopg has no parameter nonsense"),
        ("sqlite:///file:shop.db", "write sqlite:///file:shop.db?uri=true"),
        ("sqlite+aiosqlite:///shop.db", "is for asyncio"),
    ):
        code, told, said = run(asked, "--database", url)
        assert (code, told, said.count("\n"), part in said) == (2, "", 1, True), said


@pytest.mark.long
def test_the_status_shows_what_waits_fails_was_set_aside_and_who_leads(run: Run, outbox: FreshOutbox) -> None:
    run("init")
    write(outbox, "a", "b", "c", "d")
    set_aside(outbox, 1)
    with outbox.rows() as rows:
        rows.attempt_failed(rows.take(1)[0], "no such topic", retry_at_ms=2**50)
        rows.epoch(0, "host_1")
    (status,) = json.loads(run("status", "--output", "json")[1])
    assert 0 <= status.pop("oldest_age_ms") < 60_000
    assert status["leaders"]["0"].pop("updated_at_ms") > 0
    assert status == {
        "table": "outbox",
        "layout": "holdfast",
        "waiting": 3,
        "oldest_id": 2,
        "failing": 1,
        "quarantined": 1,
        "leaders": {"0": {"leader": "host_1", "epoch": 1}},
        "stopped": {},
    }
    heads, line = run("status")[1].splitlines()
    assert heads.split() == [
        "TABLE",
        "LAYOUT",
        "WAITING",
        "OLDEST-ID",
        "OLDEST-AGE-MS",
        "FAILING",
        "QUARANTINED",
        "LEADERS",
        "STOPPED",
    ]
    assert line.split()[-4:] == ["host_1", "(epoch", "1)", "-"]
    with outbox.rows() as rows:
        rows.stop(2, "row 7 is still there")
    code, out, said = run("status")
    assert (code, out.splitlines()[1].split()[-1]) == (0, "2")
    assert "shard 2 is stopped since 20" in said
    assert said.strip().endswith("Z: row 7 is still there")
    assert json.loads(run("status", "--output", "json")[1])[0]["stopped"] == {"2": "row 7 is still there"}


@pytest.mark.long
def test_rows_set_aside_are_listed_put_back_and_discarded(run: Run, outbox: FreshOutbox) -> None:
    run("init")
    assert run("quarantine", "list")[2] == "no quarantined rows in outbox\n"
    write(outbox, "a", "b", "c")
    set_aside(outbox, 3)
    listed: list[dict[str, Any]] = json.loads(run("quarantine", "list", "-o", "json")[1])
    assert [(row["id"], row["key"], row["topic"], row["size_bytes"]) for row in listed] == [
        (at + 1, key, "orders", 1) for at, key in enumerate("abc")
    ]
    assert run("quarantine", "list", "--limit", "2")[2] == "only the first 2 are shown; see --limit\n"
    assert json.loads(run("quarantine", "retry", "1", "-o", "json")[1]) == [{"action": "put back", "rows": 1}]
    assert "not set aside: 1" in run("quarantine", "retry", "1", "2")[2]
    assert run("quarantine", "discard", "2")[2] == "nothing was deleted; add --execute to delete them\n"
    assert json.loads(run("quarantine", "discard", "2", "--execute", "-o", "json")[1]) == [
        {"action": "discarded", "rows": 1}
    ]
    assert json.loads(run("quarantine", "retry", "--all", "-o", "json")[1])[0]["rows"] == 1
    with outbox.rows() as rows:
        assert [row.key for row in rows.take(9)] == [b"a", b"c"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["quarantine", "retry"], "name rows by their ids, or all of them with --all"),
        (["quarantine", "discard", "1", "--all"], "name rows by their ids, or all of them with --all"),
        (["init", "--dialect", "sqlite"], "--dialect goes with --sql"),
        (["init", "--sql", "--dialect", "oracle"], "does not know the database 'oracle'"),
        (["status", "--table", "a b"], "outbox table 'a b'"),
        (["status", "--database", "nonsense"], "is not a database URL"),
    ],
)
def test_a_wrong_command_line_is_reported_and_exits_with_2(run: Run, arguments: list[str], said: str) -> None:
    run("init")
    code, _, told = run(*arguments)
    assert (code, said in told) == (2, True), told


def test_no_database_is_a_setting_that_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_OUTBOX_DATABASE")
    code, _, told = run("status")
    assert (code, "name the database with --database URL or in HOLDFAST_OUTBOX_DATABASE" in told) == (2, True)


@pytest.mark.long
@pytest.mark.parametrize("place", ["file", "set"])
def test_the_database_of_the_settings_is_that_of_every_command(
    outbox: FreshOutbox,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`harvest` heeded the file and `--set`; the others heeded the environment alone.

    The settings win over the environment.
    """
    monkeypatch.chdir(tmp_path)
    said = {"outbox_database": outbox.url, "outbox_table": "messages", "outbox_layout": "goharvest"}
    if place == "file":
        monkeypatch.delenv("HOLDFAST_OUTBOX_DATABASE", raising=False)
        (tmp_path / "holdfast.toml").write_text(
            "[holdfast]\n" + "".join(f'{name} = "{value}"\n' for name, value in said.items())
        )
    else:
        monkeypatch.setenv("HOLDFAST_OUTBOX_DATABASE", "sqlite:////nowhere/else.db")
    given = (
        [each for name, value in said.items() for each in ("--set", f"{name}={value}")]
        if place == "set"
        else []
    )
    for arguments, told in (
        (["init"], "the outbox messages is ready (layout goharvest)"),
        (["check"], "the outbox messages is as the layout goharvest must be"),
        (["status"], "messages  goharvest"),
        (["quarantine", "list"], "no quarantined rows in messages"),
        (["init", "--remove"], "the outbox messages is removed (layout goharvest)"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*given, "outbox", *arguments])
        captured = capsys.readouterr()
        assert (ended.value.code or 0, told in captured.out + captured.err) == (0, True), captured


@pytest.mark.parametrize("layout", ["holdfast", "goharvest", "debezium"])
def test_the_statements_are_printed_for_administrators_who_run_them_themselves(run: Run, layout: str) -> None:
    code, told, _ = run(
        "init", "--sql", "--dialect", "postgresql", "--layout", layout, "--table", "shop.outbox"
    )
    assert (code, "CREATE TABLE" in told, "shop.outbox_quarantine" in told) == (0, True, True)
    assert "DROP TABLE outbox_lease" in run("init", "--sql", "--remove", "--layout", layout)[1]
    assert run("check")[0] == 1  # nothing was made


def test_a_password_is_never_shown(run: Run, postgres: Postgres) -> None:
    wrong = postgres.url.replace(postgres.password, "hunter2")
    code, out, said = run("status", "--database", wrong)
    assert (code, "hunter2" in out + said) == (1, False)
    assert "password authentication failed" in said
