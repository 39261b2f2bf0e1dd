"""Faust's own tests of agents, streams, tables, models, codecs and pages run against holdfast's application;
what fails is what docs/from-faust.md lists with its reason.

They are those of the pinned version's source distribution, which is fetched once, by its checksum, into the
cache folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

import faust
import pytest

from holdfast.jars import cache_folder
from tests.agents.faust.suite import moved_in
from tests.support.places import ROOT

HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "from-faust.md"
RUN = (
    "functional/agents",
    "functional/models",
    "functional/serializers",
    "functional/test_app.py",
    "functional/test_channels.py",
    "functional/test_models.py",
    "functional/test_streams.py",
    "functional/web",
    "unit/agents",
    "unit/app",
    "unit/models",
    "unit/serializers",
    "unit/stores",
    "unit/tables",
    "unit/test_events.py",
    "unit/test_joins.py",
    "unit/test_streams.py",
    "unit/test_topics.py",
    "unit/transport/test_conductor.py",
    "unit/web",
    "unit/windows",
)
LEFT_OUT = "functional/web/test_cache.py"
"""It needs redis."""
DEADLINE_S = 900.0
SETTINGS = """[pytest]
asyncio_mode = auto
markers =
    app
    conf
    logging
    http_session
"""


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, capture_output=True, timeout=DEADLINE_S)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only process that fills *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetched() -> Path:
    """Return the folder with Faust's tests and what they need."""
    wanted = (HERE / "requirements.txt").read_bytes() + (HERE / "sources.txt").read_bytes()
    folder = cache_folder() / f"faust-suite-{sha256(wanted).hexdigest()[:12]}"
    with alone(folder):
        if not (folder / "done").exists():
            pip(
                "install",
                "--target",
                str(folder / "tools"),
                "--no-deps",
                "-r",
                str(HERE / "requirements.txt"),
            )
            pip(
                "download",
                "--no-deps",
                "--no-binary",
                "faust-streaming",
                "-d",
                str(folder),
                "-r",
                str(HERE / "sources.txt"),
            )
            (archive,) = folder.glob("faust*.tar.gz")
            with tarfile.open(archive) as packed:
                for member in packed.getmembers():
                    member.name = member.name.partition("/")[2]
                    if member.name.startswith("tests/"):
                        packed.extract(member, folder, filter="data")
            (folder / "pytest.ini").write_text(SETTINGS)
            (folder / "done").touch()
    return folder


def listed() -> set[str]:
    """Return the tests that the page lists as failing: files, classes or tests."""
    _, _, section = PAGE.read_text().partition("## Faust's own tests")
    return set(re.findall(r"`(tests/[^`]+)`", section))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(2 * DEADLINE_S)
def test_what_fails_of_fausts_own_tests_is_what_the_page_lists(tmp_path: Path) -> None:
    folder = fetched()
    path = (folder / "tools", folder, HERE, ROOT)  # Faust's package `tests` comes before ours
    report = tmp_path / "report.xml"
    ran = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "moved_in"),
            *(
                "-c",
                "pytest.ini",
                "--rootdir",
                str(folder),
                f"--junit-xml={report}",
                "--ignore",
                f"tests/{LEFT_OUT}",
            ),
            *(f"tests/{each}" for each in RUN),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert report.exists(), ran.stdout[-3000:] + ran.stderr[-3000:]
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = {
        f"{each.get('classname', '').replace('.', '/')}/{each.get('name')}"
        for each in cases
        if each.find("failure") is not None or each.find("error") is not None
    }
    assert len(cases) > 1_300
    unlisted = {each for each in failed if not any(_is_in(each, one) for one in listed())}
    assert not unlisted, ran.stdout[-6000:]
    assert {one for one in listed() if not any(_is_in(each, one) for each in failed)} == set(), (
        "these pass now"
    )


def _is_in(failed: str, one: str) -> bool:
    """Return whether a failed test, as junit names it, is *one* of the page:
    `tests/a/test_b.py::Test_C::test_d`, or all of a file or class.
    """
    place = one.replace(".py", "").replace("::", "/")
    return failed == place or failed.startswith((place + "/", place + "["))


def test_collected_with_our_tests_the_plugin_leaves_faust_as_it_is() -> None:
    assert faust.App is not moved_in.MovedIn
