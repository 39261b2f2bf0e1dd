"""The rooms at the root are one package, holdfast, however it gets to where it runs: checkout, wheel,
editable install, Spark zip.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

pytestmark = pytest.mark.process

PRODUCT = "holdfast"
ROOMS = ("agents", "tables", "outbox", "pipeline")
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
SITE_PACKAGES = sysconfig.get_path("purelib")


def run(*command: str | Path, cwd: Path, path: str = "") -> str:
    """Return the output of *command*; it sees no holdfast but the one under test, and no index."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PIP_", "HOLDFAST_"))
    }
    environment |= {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_CONFIG_FILE": os.devnull}
    if path:
        environment["PYTHONPATH"] = path
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, (
        f"{' '.join(map(str, command))} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


def checkout(target: Path, *, links: bool = True) -> Path:
    """Copy the packaged files to *target*, links as links, or as the text files that a checkout without links
    has.
    """
    target.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    for name in ("holdfast", *ROOMS):
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignore)
    for room in () if links else ROOMS:
        (target / "holdfast" / room).unlink()
        (target / "holdfast" / room).write_text(f"../{room}")
    return target


def build(source: Path, out: Path) -> Path:
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        out,
        source,
        cwd=out.parent,
    )
    (wheel,) = out.glob("*.whl")
    return wheel


def environment(folder: Path) -> Path:
    """Make a virtual environment without packages; return its python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build(checkout(folder / "source"), folder / "out")


def expected() -> set[str]:
    """Return every file that a wheel must hold, as its path in it: whatever lies in the rooms but pages
    and what Python leaves there.
    """
    out = set()
    for folder, within in [
        (ROOT / "holdfast", Path("holdfast")),
        *((ROOT / room, Path("holdfast") / room) for room in ROOMS),
    ]:
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix not in (".md", ".pyc"):
                out.add(str(within / path.relative_to(folder)))
    return out


# -- the checkout


@pytest.mark.parametrize("room", ROOMS)
def test_each_link_leads_to_its_room(room: str) -> None:
    link = ROOT / "holdfast" / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../{room}"
    assert link.resolve() == ROOT / room


def test_packages_are_exactly_the_folders_with_an_init() -> None:
    found = {".".join(Path(each).parent.parts) for each in expected() if each.endswith("/__init__.py")}
    assert found == set(SETUPTOOLS["packages"])
    assert len(SETUPTOOLS["packages"]) == len(set(SETUPTOOLS["packages"]))


def test_every_folder_with_modules_has_an_init() -> None:
    # Without one it would be a namespace package, which a zip on a Spark executor does not import.
    files = expected()
    folders = {Path(each).parent for each in files if each.endswith(".py")}
    assert all(str(folder / "__init__.py") in files for folder in folders)


def test_the_mapping_names_every_room() -> None:
    assert SETUPTOOLS["package-dir"] == {f"holdfast.{room}": room for room in ROOMS}


def all_doctests() -> tuple[str, str]:
    """Return the expressions of marks that leave no doctest out: none, and that of `make test`."""
    return "", "tier_test"


def collected(session: pytest.Session) -> list[str]:
    """Return the ids of all doctests of the product: this run's own, where it has collected them."""
    chosen = session.config.option
    all_of_them = chosen.markexpr in all_doctests() and not (chosen.keyword or chosen.deselect)
    if PRODUCT in session.config.args and all_of_them:
        return [item.nodeid for item in session.items if not item.nodeid.startswith("tests/")]
    listing = ("-m", "pytest", "--collect-only", "-q", PRODUCT, "-p", "no:cacheprovider")
    return [line for line in run(sys.executable, "-P", *listing, cwd=ROOT).splitlines() if "::" in line]


def test_each_doctest_is_collected_once_also_those_of_linked_rooms(request: pytest.FixtureRequest) -> None:
    items = [each.split("::") for each in collected(request.session)]
    assert Counter(Path(path).resolve().name + "::" + name for path, name in items).most_common(1)[0][1] == 1
    assert any(path.startswith("holdfast/pipeline/") for path, _ in items)
    assert not any(path.startswith(ROOMS) for path, _ in items)


def test_ruff_and_mypy_see_each_file_once() -> None:
    shown = [
        Path(line)
        for line in run(sys.executable, "-m", "ruff", "check", "--show-files", ".", cwd=ROOT).splitlines()
    ]
    assert len({path.resolve() for path in shown}) == len(shown)
    assert {ROOT / room / "__init__.py" for room in ROOMS} <= set(shown)
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    assert "holdfast" in checked
    assert not set(checked) & set(ROOMS)


# -- the wheel


def test_the_wheel_holds_every_module_and_every_data_file(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == expected()
    assert not any(name.split("/")[0] in ROOMS for name in held), (
        "a top-level room would overwrite another package"
    )


@pytest.mark.variant
def test_a_checkout_that_lost_its_links_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    other = build(checkout(tmp_path / "source", links=False), tmp_path / "out")
    assert set(zipfile.ZipFile(other).namelist()) == set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_installs_into_a_fresh_environment_without_network(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=tmp_path,
    )
    imports = "; ".join(f"import {package}" for package in SETUPTOOLS["packages"])
    shown = run(
        python,
        "-c",
        f"{imports}; print(holdfast.tables.__file__, holdfast.__file__)",
        cwd=tmp_path,
        path=SITE_PACKAGES,
    )
    assert all(str(tmp_path / "venv") in each for each in shown.split())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    metadata = (
        "from importlib import metadata as m; print(m.version('holdfast'),"
        " m.metadata('holdfast')['License-Expression'])"
    )
    assert run(python, "-c", metadata, cwd=tmp_path).split() == [version, "Apache-2.0"]
    assert "topics" in run(tmp_path / "venv" / "bin" / "holdfast", "--help", cwd=tmp_path, path=SITE_PACKAGES)


@pytest.mark.variants("False")
@pytest.mark.parametrize("links", [True, False])
def test_an_editable_install_runs_the_files_of_the_checkout(links: bool, tmp_path: Path) -> None:
    source = checkout(tmp_path / "source", links=links)
    python = environment(tmp_path / "venv")
    for part in (
        *Path(SITE_PACKAGES).glob("setuptools*"),
        Path(SITE_PACKAGES, "_distutils_hack"),
    ):  # what builds it, and nothing else
        shutil.copytree(part, next(tmp_path.glob("venv/lib/*/site-packages")) / part.name)
    target = ("--python", python, "install", "--no-deps", "--no-index", "--no-build-isolation", "-e", source)
    run(sys.executable, "-m", "pip", *target, cwd=tmp_path)
    show = (
        "import holdfast.tables, holdfast.core, holdfast.added; print(holdfast.tables.__file__,"
        " holdfast.core.__file__)"
    )
    (source / "holdfast" / "added.py").write_text("")
    shown = [Path(each).resolve() for each in run(python, "-P", "-c", show, cwd=source).split()]
    assert shown == [source / "tables/__init__.py", source / "holdfast/core/__init__.py"]


def test_the_wheel_renamed_zip_is_importable_as_spark_ships_it(wheel: Path, tmp_path: Path) -> None:
    shipped = shutil.copy(wheel, tmp_path / "holdfast.zip")
    program = (
        f"import sys; sys.path[:0] = [{str(shipped)!r}, {SITE_PACKAGES!r}]\n"
        "import holdfast.core.engine.fold.folding, holdfast.core.claims.guarded, holdfast.pipeline\n"
        "print(holdfast.core.engine.fold.folding.__file__, holdfast.pipeline.__file__)\n"
        "print(sorted(set(sys.modules) & {'faust', 'rocksdict', 'confluent_kafka', 'pyspark'}))"
    )
    places, heavy = run(sys.executable, "-S", "-P", "-c", program, cwd=tmp_path).splitlines()
    assert all(each.startswith(f"{shipped}/") for each in places.split())
    assert heavy == "[]", "an executor needs msgspec only"


def test_every_pinned_package_has_its_hashes_and_its_licence_on_the_page() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pinned = dict(re.findall(r"^([\w.\-]+)==(\S+)", lock, re.MULTILINE))
    assert len(pinned) > 50
    hashed = re.findall(
        r"^([\w.\-]+)==\S+(?: ;[^\n]*)? \\\n    --hash=sha256:[0-9a-f]{64}", lock, re.MULTILINE
    )
    assert set(hashed) == set(pinned), "written by `make lock`"
    page = re.findall(
        r"^\| (\S+) +\| (\S+) +\| (\S.*?) +\|$", (ROOT / "docs" / "LICENSES.md").read_text(), re.MULTILINE
    )
    licensed = {canonical(name): version for name, version, _ in page if name != "Name"}
    assert licensed == {canonical(name): version for name, version in pinned.items()}, (
        "written by `make lock`"
    )
    assert not [name for name, _, licence in page if licence == "UNKNOWN"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
