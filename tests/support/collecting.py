"""Collection of a whole run by one of its processes (`make test JOBS=4`), and by the others of what they run.

To collect is to import each file of tests and each module with doctests, which takes 10 seconds of a
processor. The processes of pytest-xdist each do all of it, to agree on the numbers of tests. Here the first
of them does, and writes down the ids; each of the others reads those and collects a file when it is given a
test of it:

    gw0: perform_collect  --ids--> file  --> gw1, gw2, …: Later(ids), a file at a time

Paths on the command line are collected as usual, because they are few.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import SupportsIndex, overload

import pytest

DEADLINE_S = 900.0
"""Twenty times the duration of a collection on a machine with five busy processes. After that each process
collects for itself, as usual.
"""
_POLL_S = 0.05

Prepare = Callable[[list[pytest.Item]], None]


class Known:
    """A test of which this process knows the id alone."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


class Later(list[Known | pytest.Item]):
    """The tests of a session by their numbers: iterated over they are ids, taken out one is a whole test."""

    def __init__(self, session: pytest.Session, ids: Iterable[str], prepare: Prepare) -> None:
        super().__init__(Known(each) for each in ids)
        self._session, self._prepare = session, prepare
        self._numbers = {each.nodeid: number for number, each in enumerate(self)}
        self._children: dict[pytest.Collector, list[pytest.Collector]] = {}

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> pytest.Item: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[Known | pytest.Item]: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Known | pytest.Item | list[Known | pytest.Item]:
        found = super().__getitem__(index)
        if not isinstance(found, Known) or isinstance(index, slice):
            return found
        self._collect(_file(found.nodeid))
        made = super().__getitem__(index)
        assert isinstance(made, pytest.Item), (
            f"{found.nodeid} was collected by the first process of this run and is not there in this one: "
            "either its file cannot be imported here, or its id is another one in each process"
        )
        return made

    def look_into_folders(self) -> None:
        """Collect the folders of all files, not the files: pytest forgets the fixtures of a conftest whose
        folder was not collected by the end of its collection.
        """
        for file in {_file(each.nodeid) for each in self}:
            self._collectors(file)

    def _collect(self, file: str) -> None:
        """Put the tests of *file*, relative to the root, where their ids are."""
        made = [item for each in self._collectors(file) for item in self._session.genitems(each)]
        self._prepare(made)
        for item in made:
            if (number := self._numbers.get(item.nodeid)) is not None:
                self[number] = item

    def _collectors(self, file: str) -> list[pytest.Collector]:
        """Return the collectors of *file*: one for its tests, one for its doctests."""
        path = self._session.config.rootpath
        found = self._below(self._session, path)
        for part in Path(file).parts:
            path = path / part
            found = [child for each in found for child in self._below(each, path)]
        return found

    def _below(self, node: pytest.Collector, path: Path) -> list[pytest.Collector]:
        """Return the collectors of *path* in the folder that *node* is; the same ones each time, for fixtures
        are known by them.
        """
        if node not in self._children:
            if node is self._session:
                top = self._session.gethookproxy(path.parent).pytest_collect_directory(path=path, parent=node)
                self._children[node] = [top]
            else:
                report = node.ihook.pytest_make_collect_report(collector=node)
                assert report.passed, f"{node.path} cannot be collected: {report.longreprtext}"
                self._children[node] = list(report.result)
        return [each for each in self._children[node] if each.path == path]


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def share(session: pytest.Session, ids: Path, refused: str | None = None) -> None:
    """Write the ids of the tests of *session*, in their order, for the other processes of the run; or why
    there are none.
    """
    whole = ids.with_name(f"{ids.name}.{os.getpid()}")
    told = {"refused": refused} if refused else [each.nodeid for each in session.items]
    whole.write_text(json.dumps(told), encoding="utf-8")
    whole.replace(ids)


def refused(ids: Path) -> str | None:
    """Return why the first process wrote no ids, None where it did or is not yet through."""
    told = json.loads(ids.read_text(encoding="utf-8")) if ids.exists() else None
    return told["refused"] if isinstance(told, dict) else None


def collect_later(session: pytest.Session, ids: Path, prepare: Prepare) -> None:
    """Have *session* take the tests that another process writes into *ids*, and collect each file when it is
    needed.

    *prepare* is given the tests of a file as they are collected.
    """
    usual = session.perform_collect

    def perform_collect() -> Iterable[pytest.Item]:
        until_s = time.monotonic() + DEADLINE_S
        while not ids.exists():
            if time.monotonic() > until_s:
                return usual()
            time.sleep(_POLL_S)
        if (why := refused(ids)) is not None:
            raise pytest.UsageError(why)
        items = Later(session, json.loads(ids.read_text(encoding="utf-8")), prepare)
        items.look_into_folders()
        session.items = items  # type: ignore[assignment]
        session.testscollected = len(session.items)
        session.config.hook.pytest_collection_finish(session=session)
        return session.items

    session.perform_collect = perform_collect  # type: ignore[method-assign, assignment]
