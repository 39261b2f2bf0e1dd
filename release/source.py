"""The tree that a release is built from: what is committed, and nothing else of the folder."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tomllib
from pathlib import Path

from release.errors import ReleaseError

_LINK = re.compile(r"\]\((?!https?://|#|mailto:)(?P<target>[^)\s]+)\)")
_SECTION = re.compile(r"^## \[(?P<version>[^\]\n]+)\]", re.MULTILINE)


def laid_out(root: Path, folder: Path, home: str) -> Path:
    """Write the tree of *root*'s last commit to *folder*, its README with links to *home*; return *folder*.

    *home* is the repository's address, without a slash at its end. A package index shows README alone: its
    relative links would lead nowhere there. Without a home (an empty string) they stay as they are.
    """
    archive = _git(root, "archive", "--format=tar", "HEAD")
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    if home:
        version = version_of(folder)
        readme, project = folder / "README.md", folder / "pyproject.toml"
        readme.write_text(absolute(readme.read_text("utf-8"), f"{home}/blob/v{version}"), "utf-8")
        project.write_text(project.read_text("utf-8") + urls(home, version), "utf-8")
    return folder


def absolute(page: str, tree: str) -> str:
    """Return *page* with each relative link led to *tree*.

    >>> absolute("[a](docs/a.md#b), [c](#c), [d](https://d)", "https://host/blob/v1")
    '[a](https://host/blob/v1/docs/a.md#b), [c](#c), [d](https://d)'
    """
    return _LINK.sub(lambda found: f"]({tree}/{found['target']})", page)


def urls(home: str, version: str) -> str:
    """Return the table of a project's addresses, for the end of pyproject.toml."""
    tree = f"{home}/blob/v{version}"
    named = {
        "Homepage": home,
        "Documentation": f"{tree}/docs",
        "Changelog": f"{tree}/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }
    return "\n[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in named.items())


def version_of(tree: Path) -> str:
    """Return the version of pyproject.toml; raise ReleaseError if CHANGELOG.md has no section for it."""
    version: str = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    if version not in sections(tree):
        raise ReleaseError(
            f"CHANGELOG.md has no section [{version}]: write it, or change pyproject.toml's version"
        )
    return version


def sections(tree: Path) -> list[str]:
    """Return what CHANGELOG.md's sections are named, newest first."""
    return _SECTION.findall((tree / "CHANGELOG.md").read_text("utf-8"))


def require_committed(root: Path) -> None:
    """Raise ReleaseError if the folder holds what no commit has: a release is made from commits alone."""
    changed = _git(root, "status", "--porcelain").decode().splitlines()
    if changed:
        raise ReleaseError(
            f"{len(changed)} files differ from the last commit, {changed[0][3:]} first: commit them"
        )


def _git(root: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False, timeout=60)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]} failed: {done.stderr.decode().strip()}")
    return done.stdout
