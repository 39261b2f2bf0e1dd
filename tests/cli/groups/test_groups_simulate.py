"""`holdfast groups simulate`: an assignor's doings, without a broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.__main__ import main
from holdfast.cli.groups.simulate import settled
from holdfast.core.groups.assignors.types import AssignorName, Subscriber
from holdfast.core.kafka.topic_partition import TopicPartition
from tests.support.places import TESTDATA

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["groups", "simulate", *arguments])
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return command


def test_a_member_that_joins_takes_one_partition_and_two_rounds_of_the_cooperative_assignor(run: Run) -> None:
    """G2, the article's picture: t-0 and t-1 keep running, t-2 changes its member in the second round."""
    code, out, err = run(
        "--topic", "t:3", "--member", "consumer1", "--member", "consumer2", "--join", "consumer3"
    )
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["MEMBER", "TOPICS", "BEFORE", "AFTER", "KEPT", "GIVEN-UP", "GAINED", "ASSIGNMENT"],
        ["consumer1", "t", "2", "1", "1", "t-2", "-", "t-0"],
        ["consumer2", "t", "1", "1", "1", "-", "-", "t-1"],
        ["consumer3", "t", "-", "1", "0", "-", "t-2", "t-2"],
    ]
    assert "1 of 3 partitions change their member, spread 0, 2 rounds" in err


def test_a_file_and_flags_make_one_membership_and_json_has_all(run: Run, tmp_path: Path) -> None:
    membership = {
        "topics": {"orders": 4},
        "members": [{"id": "a"}, {"id": "b", "topics": ["orders"]}],
        "assignor": "range",
    }
    (tmp_path / "group.json").write_text(json.dumps(membership))
    code, out, _ = run("group.json", "--leave", "b", "--grow", "orders:5", "--output", "json")
    found: dict[str, Any] = json.loads(out)
    assert code == 0
    assert {name: found[name] for name in ("assignor", "partitions", "moved", "spread", "rounds")} == {
        "assignor": "range",
        "partitions": 5,
        "moved": 2,
        "spread": 0,
        "rounds": 1,
    }
    assert found["members"][1] == {
        "member": "b",
        "topics": ["orders"],
        "before": 2,
        "after": None,
        "kept": 0,
        "given_up": ["orders-2", "orders-3"],
        "gained": [],
        "assignment": [],
    }


def test_a_membership_in_toml_may_say_who_owns_what(run: Run, tmp_path: Path) -> None:
    text = """
        assignor = "sticky"
        topics = { t = 4 }
        members = [{ id = "a", owned = ["t-3"], generation = 1 }, { id = "b" }]
    """
    (tmp_path / "group.toml").write_text(text)
    code, out, _ = run("group.toml", "--output", "json")
    assert code == 0
    assert "t-3" in json.loads(out)["members"][0]["assignment"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "nothing to assign"),
        (("--topic", "t"), "write TOPIC:N"),
        (("--topic", "t:0", "--member", "a"), "use 1 to"),
        (("--topic", "t:1", "--member", "a", "--leave", "b"), "b cannot leave"),
        (("--topic", "t:1", "--member", "a:u"), "of unknown partition count"),
        (("--topic", "t:1", "--member", "a", "--member", "a"), "two members under one member id"),
        (("nowhere.toml",), "nowhere.toml"),
        (("bad.toml",), "bad.toml"),
        (("odd.json",), "unknown field"),
    ],
)
def test_what_cannot_be_simulated_is_said_with_what_to_do(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    (tmp_path / "bad.toml").write_text("topics = [")
    (tmp_path / "odd.json").write_text('{"members": [{"id": "a", "colour": 1}]}')
    code, out, err = run(*arguments)
    assert code == 2
    assert text in err
    assert out == ""


def test_rounds_are_those_of_the_recorded_groups() -> None:
    """G1: how many cooperative rounds each case takes until everybody has what stays."""
    for case in json.loads((TESTDATA / "assignors_owned.json").read_text())["cases"]:
        members = [
            Subscriber(
                member_id=each["id"],
                topics=tuple(each["topics"]),
                owned=tuple(
                    TopicPartition(text.rpartition("-")[0], int(text.rpartition("-")[2]))
                    for text in each["owned"]
                ),
                generation=each["generation"],
            )
            for each in case["members"]
        ]
        _, rounds = settled(AssignorName.COOPERATIVE_STICKY, case["topics"], members)
        assert rounds == len(case["cooperative"]), case["id"]
