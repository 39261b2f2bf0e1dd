"""`python -P -m release`: build, check, try, and list what a release holds."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from release import trial
from release.environments import INSTALL_LIMIT_S, empty, install, told, version_named
from release.errors import ReleaseError
from release.source import laid_out, require_committed, sections, version_of

ROOT = Path(__file__).resolve().parents[1]
TRIED = ("worker", "lake")
"""The extras that README's program needs; the light base is tried beside."""


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    tools = Path(asked.tools).absolute()
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-release-") as scratch:
            _release(Path(scratch), tools, asked.home.rstrip("/"), asked.pythons.split())
    except ReleaseError as error:
        print(f"not released: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument(
        "--tools", required=True, help="folder with the programs of build, twine and cyclonedx-py"
    )
    parser.add_argument("--home", default="", help="address of the repository, for links and metadata")
    parser.add_argument("--pythons", default="python3.11", help="interpreters to try the wheel with")
    return parser


def _release(scratch: Path, tools: Path, home: str, pythons: list[str]) -> None:
    require_committed(ROOT)
    versions = {python: version_named(python) for python in pythons}
    tree = laid_out(ROOT, scratch / "tree", home)
    version = version_of(tree)
    if sections(tree)[0] != version:
        print(f"rehearsal: CHANGELOG.md begins with [{sections(tree)[0]}], and pyproject.toml says {version}")
    if not home:
        print("rehearsal: no HOME_URL, so README's links stay relative and the metadata has no addresses")
    wheel = _built(tree, scratch / "dist", tools)
    page = (tree / "README.md").read_text("utf-8")
    for python, named in versions.items():
        _tried(python, named, scratch, wheel, page)
    _bill(tools, scratch / f"{versions[pythons[0]]}-with-extras", scratch / "dist", version)
    for path in _kept(scratch / "dist"):
        print(f"made {path.relative_to(ROOT)}")


def _built(tree: Path, dist: Path, tools: Path) -> Path:
    """Build sdist and wheel (the wheel from the sdist), have twine judge both, and return the wheel."""
    print("== build, twine check")
    told(
        [str(tools / "python"), "-m", "build", "--outdir", str(dist), str(tree)],
        tree,
        limit_s=INSTALL_LIMIT_S,
    )
    made = sorted(map(str, dist.iterdir()))
    told([str(tools / "twine"), "check", "--strict", *made], tree)
    (wheel,) = dist.glob("*.whl")
    return wheel


def _tried(python: str, named: str, scratch: Path, wheel: Path, page: str) -> None:
    for extras, what in (((), "light"), (TRIED, "with-extras")):
        print(f"== Python {named}, an empty environment, {what.replace('-', ' ')}")
        programs = empty(python, scratch / f"{named}-{what}")
        install(programs, wheel, extras)
        folder = scratch / f"{named}-{what}-trial"
        folder.mkdir()
        if extras:
            trial.readme(programs, folder, page)
        else:
            trial.light(programs, folder)


def _bill(tools: Path, environment: Path, dist: Path, version: str) -> None:
    """Write what the tried environment holds, with licences, as a CycloneDX bill of materials."""
    print("== bill of materials")
    target = dist / f"holdfast-{version}.cdx.json"
    command = [str(tools / "cyclonedx-py"), "environment", str(environment), "--output-file", str(target)]
    told([*command, "--output-reproducible"], dist)


def _kept(dist: Path) -> list[Path]:
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(dist, target)
    return sorted(target.iterdir())


if __name__ == "__main__":
    sys.exit(main())
