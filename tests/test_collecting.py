"""One process of a run collects everything, and the others what they run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import collecting
from tests.support.collecting import Known, Later, collect_later, refused, share

ROOT = Path("/project")
IDS = [
    "tests/a/test_one.py::x",
    "tests/a/test_one.py::y",
    "tests/a/test_two.py::x",
    "holdfast/one.py::holdfast.one",
]


class Node(SimpleNamespace):
    """A collector or an item, with the attributes that these tests need."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # a namespace of its own, and no value


class Session(Node):
    """A tree of folders and files which counts how often each is collected."""

    def __init__(self, tree: dict[str, list[str]]) -> None:
        self.collected: list[str] = []
        self.finished: list[list[str]] = []
        self._tree = tree
        super().__init__(
            config=SimpleNamespace(
                rootpath=ROOT,
                hook=SimpleNamespace(pytest_collection_finish=lambda session: self._finish(session.items)),
            )
        )

    def _finish(self, items: list[Known]) -> None:
        self.finished.append([each.nodeid for each in items])
        self.collected.append("finish")

    def gethookproxy(self, _: Path) -> Any:
        return SimpleNamespace(pytest_collect_directory=lambda path, parent: self._node(path))

    def _node(self, path: Path) -> Node:
        return Node(path=path, ihook=SimpleNamespace(pytest_make_collect_report=self._report))

    def _report(self, collector: Node) -> Any:
        self.collected.append(str(collector.path))
        below = {
            path
            for file in self._tree
            for path in (ROOT / file, *(ROOT / file).parents)
            if path.parent == collector.path
        }
        return SimpleNamespace(passed=True, result=[self._node(each) for each in sorted(below)])

    def genitems(self, node: Node) -> Iterator[Any]:
        file = str(node.path.relative_to(ROOT))
        self.collected.append(file)
        for name in self._tree[file]:
            yield Item.at(f"{file}::{name}")

    def perform_collect(self) -> list[str]:
        return ["all"]


class Item(pytest.Item):
    """A test of which the id alone is asked."""

    nodeid = ""

    @classmethod
    def at(cls, nodeid: str) -> Item:
        item = cls.__new__(cls)
        item.nodeid = nodeid
        return item

    def runtest(self) -> None:
        raise NotImplementedError


@pytest.fixture
def session() -> Any:
    tree = {
        "tests/a/test_one.py": ["x", "y"],
        "tests/a/test_two.py": ["x"],
        "holdfast/one.py": ["holdfast.one"],
    }
    return Session(tree)


def test_a_file_is_collected_when_a_test_of_it_is_taken_and_then_no_more(session: Any) -> None:
    prepared: list[list[str]] = []
    items = Later(session, IDS, lambda made: prepared.append([each.nodeid for each in made]))
    assert [each.nodeid for each in items] == IDS
    assert session.collected == []
    assert [items[number].nodeid for number in (1, 0, 1)] == [IDS[1], IDS[0], IDS[1]]
    assert session.collected == ["/project", "/project/tests", "/project/tests/a", "tests/a/test_one.py"]
    assert items[3].nodeid == IDS[3]
    assert session.collected[4:] == ["/project/holdfast", "holdfast/one.py"], "folders are collected once"
    assert prepared == [IDS[:2], IDS[3:]]
    assert isinstance(list(items)[2], Known), "nobody asked for it"


def test_tests_that_were_left_out_stay_so(session: Any) -> None:
    items = Later(session, [IDS[1]], lambda made: None)
    assert items[0].nodeid == IDS[1]
    assert len(items) == 1


def test_a_test_that_is_not_there_in_this_process_is_an_error(session: Any) -> None:
    items = Later(session, ["tests/a/test_one.py::x[0x7f01]"], lambda made: None)
    with pytest.raises(AssertionError, match=r"test_one\.py::x\[0x7f01\] was collected by the first process"):
        items[0]


def test_ids_go_from_one_process_to_the_others(session: Any, tmp_path: Path) -> None:
    ids = tmp_path / "ids.json"
    share(Node(items=[Known(each) for each in reversed(IDS)]), ids)  # type: ignore[arg-type]
    collect_later(session, ids, lambda made: None)
    session.perform_collect()
    assert session.finished == [IDS[::-1]]
    assert session.testscollected == 4
    assert sorted(session.collected[:-1]) == [
        "/project",
        "/project/holdfast",
        "/project/tests",
        "/project/tests/a",
    ]
    assert session.collected[-1] == "finish", "conftests of folders that pytest did not see by then are lost"
    assert list(tmp_path.iterdir()) == [ids], "what is written is whole when it has its name"


def test_what_the_first_process_refuses_no_other_runs(session: Any, tmp_path: Path) -> None:
    ids = tmp_path / "ids.json"
    assert refused(ids) is None
    share(Node(items=[Known(each) for each in IDS]), ids, "variants alone")  # type: ignore[arg-type]
    assert refused(ids) == "variants alone"
    collect_later(session, ids, lambda made: None)
    with pytest.raises(pytest.UsageError, match="variants alone"):
        session.perform_collect()
    assert session.finished == []


def test_without_ids_a_process_collects_as_usual(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "DEADLINE_S", 0.0)
    collect_later(session, tmp_path / "ids.json", lambda made: None)
    assert session.perform_collect() == ["all"]


def test_ids_are_waited_for(session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tmp_path / "ids.json"
    monkeypatch.setattr(time, "sleep", lambda _: ids.write_text(json.dumps(IDS)))
    collect_later(session, ids, lambda made: None)
    session.perform_collect()
    assert session.finished == [IDS]
