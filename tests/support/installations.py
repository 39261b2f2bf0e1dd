"""The environment of one line `pip install 'holdfast[…]'`, made in a moment.

Nothing is downloaded: the packages are links to those of this environment. Those that the line does not bring
are not there, neither to import nor as programs nor for `importlib.metadata`. That holds a page to the extras
that it names.
"""

from __future__ import annotations

import csv
import os
import re
import sys
import sysconfig
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import Distribution, distribution, distributions
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.places import ROOT

PRODUCT = "holdfast"
_NAMED = re.compile(
    r"""\bpip install ["']?(?:holdfast|\.)(?:\[(?P<with>[\w,-]+)\])?(?=[\s"'`]|$)|["']holdfast\[(?P<more>[\w,-]+)\]["']"""  # noqa: E501
)
_PROGRAM = """#!{python}
import sys
from {module} import {name}
sys.exit({attribute}())
"""


def named_extras(page: str) -> frozenset[str] | None:
    """Return the extras in the install line of *page*, None where it has no such line.

    >>> named_extras("    pip install .") == frozenset()
    True
    >>> sorted(named_extras("`pip install 'holdfast[worker,lake]'`, and `'holdfast[avro]'` for Avro"))
    ['avro', 'lake', 'worker']
    >>> named_extras("install it, says pip install holdfastness")
    """
    found = [each["with"] or each["more"] or "" for each in _NAMED.finditer(page)]
    return frozenset(extra for extras in found for extra in extras.split(",") if extra) if found else None


class Installation:
    """An environment with holdfast as this checkout has it, and the packages of some extras."""

    def __init__(self, folder: Path, extras: Iterable[str] = ()) -> None:
        self.programs = folder / "bin"
        self.python = self.programs / "python"
        self._site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        self.programs.mkdir(parents=True)
        self._site.mkdir(parents=True)
        base = Path(getattr(sys, "_base_executable", sys.executable))
        (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
        self.python.symlink_to(base)
        self.brings = brought_by(frozenset(extras))
        (self._site / PRODUCT).symlink_to(ROOT / PRODUCT)
        for each in (*self.brings, PRODUCT):
            self._install(distribution(each))

    def _install(self, found: Distribution) -> None:
        for link in _links(canonicalize_name(found.name), self.brings):
            target = self._site / link
            if not target.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(_site_packages() / link)
        for script in found.entry_points.select(group="console_scripts"):
            self._add_program(script.name, script.module, script.attr)

    def _add_program(self, name: str, module: str, attribute: str) -> None:
        program = self.programs / name
        first, _, _ = attribute.partition(".")
        program.write_text(
            _PROGRAM.format(python=self.python, module=module, name=first, attribute=attribute), "utf-8"
        )
        program.chmod(0o755)

    def path(self) -> str:
        """Return the variable PATH with the programs of this environment first."""
        return f"{self.programs}{os.pathsep}{os.environ['PATH']}"


@cache
def brought_by(extras: frozenset[str]) -> frozenset[str]:
    """Return the names of the packages that an installation with *extras* has in addition to holdfast.

    They are those of pyproject.toml, and the requirements of these in turn. Fails for an extra that does not
    exist, and for a package that is not here to be linked.
    """
    found, waiting = set[str](), [*_own(extras)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        needs = [Requirement(each) for each in distribution(name).requires or ()]
        more = [each for each in needs if _applies(each, wanted.extras)]
        if name in found:  # its extras may be new; their packages are looked up once
            more = [each for each in more if canonicalize_name(each.name) not in found]
        found.add(name)
        waiting += more
    return frozenset(found)


def with_those_within(extras: Iterable[str]) -> frozenset[str]:
    """Return *extras* with those that they bring in turn.

    >>> sorted(with_those_within(["spark"]))
    ['lake', 'spark']
    """
    optional, found, waiting = _project()["optional-dependencies"], set[str](), [*extras]
    while waiting:
        found.add(extra := waiting.pop())
        for wanted in map(Requirement, optional[extra]):
            if wanted.name == PRODUCT:
                waiting += wanted.extras - found
    return frozenset(found)


def _own(extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield holdfast's own requirements with *extras*."""
    project = _project()
    optional = [project["optional-dependencies"][extra] for extra in with_those_within(extras)]
    for wanted in map(Requirement, chain(project["dependencies"], *optional)):
        if wanted.name != PRODUCT and _applies(wanted, ()):
            yield wanted


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _applies(wanted: Requirement, extras: Iterable[str]) -> bool:
    return wanted.marker is None or any(wanted.marker.evaluate({"extra": each}) for each in ("", *extras))


def _site_packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


@cache
def _owners() -> tuple[dict[PurePosixPath, set[str]], dict[str, list[PurePosixPath]]]:
    """Return which packages have files below each folder of this environment, and the files of each
    package.
    """
    folders, files = defaultdict[PurePosixPath, set[str]](set), dict[str, list[PurePosixPath]]()
    for each in distributions(path=[str(_site_packages())]):
        name = canonicalize_name(each.name)
        rows = csv.reader((each.read_text("RECORD") or "").splitlines())
        files[name] = [path for row in rows if (path := PurePosixPath(row[0])).parts[0] != ".."]
        for folder in {folder for path in files[name] for folder in path.parents}:
            folders[folder].add(name)
    return folders, files


def _links(package: str, chosen: frozenset[str]) -> set[PurePosixPath]:
    """Return the paths to link for *package*: whole folders, except those that it shares with a package not
    *chosen*.
    """
    folders, files = _owners()
    if package == PRODUCT:  # installed as a link itself, by a finder of this environment
        return {path.parents[-2] for path in files[PRODUCT] if ".dist-info" in path.parts[0]}
    out = set[PurePosixPath]()
    for path in files[package]:
        for place in (*reversed(path.parents[:-1]), path):
            if folders.get(place, {package}) <= chosen:
                out.add(place)
                break
    return out


class Installations:
    """The environments of a test run, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[frozenset[str], Installation] = {}

    def of(self, extras: Iterable[str]) -> Installation:
        """Return the environment with *extras*."""
        wanted = frozenset(extras)
        if wanted not in self._made:
            self._made[wanted] = Installation(self._folder / ("-".join(sorted(wanted)) or "light"), wanted)
        return self._made[wanted]

    def of_page(self, page: Path) -> Installation:
        """Return the environment that the install lines of *page* make; fails where it has none."""
        extras = named_extras(page.read_text("utf-8"))
        assert extras is not None, (
            f"{page.name} names no install line, such as pip install 'holdfast[worker]'"
        )
        return self.of(extras)
