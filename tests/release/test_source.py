"""The sources of a release."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from release.__main__ import main
from release.errors import ReleaseError
from release.source import laid_out, require_committed, sections, version_of
from tests.support.places import ROOT

PROJECT = '[project]\nname = "x"\nversion = "1.2.3"\n'
CHANGES = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-01\n"


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "CHANGELOG.md").write_text(CHANGES)
    (folder / "README.md").write_text("[how](docs/a.md), [why](#why), [kafka](https://kafka.apache.org)\n")
    (folder / ".gitignore").write_text("dist/\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.mark.process
def test_what_no_commit_has_is_in_no_release(repository: Path, tmp_path: Path) -> None:
    (repository / "dist").mkdir()
    (repository / "dist" / "old.whl").write_text("")
    require_committed(repository)
    tree = laid_out(repository, tmp_path / "tree", "")
    assert not (tree / "dist").exists()
    assert (tree / "README.md").read_text() == (repository / "README.md").read_text()
    (repository / "README.md").write_text("changed")
    with pytest.raises(
        ReleaseError, match=r"1 files differ from the last commit, README\.md first: commit them"
    ):
        require_committed(repository)


@pytest.mark.process
def test_links_of_the_readme_and_metadata_lead_to_the_repository(repository: Path, tmp_path: Path) -> None:
    tree = laid_out(repository, tmp_path / "tree", "https://git.example/x")
    assert (tree / "README.md").read_text() == (
        "[how](https://git.example/x/blob/v1.2.3/docs/a.md), [why](#why), [kafka](https://kafka.apache.org)\n"
    )
    named = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["urls"]
    assert named["Changelog"] == "https://git.example/x/blob/v1.2.3/CHANGELOG.md"


@pytest.mark.process
def test_a_folder_without_a_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="git archive failed"):
        laid_out(tmp_path, tmp_path / "tree", "")


def test_a_version_without_a_section_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT.replace("1.2.3", "1.3.0"))
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    with pytest.raises(ReleaseError, match=r"CHANGELOG.md has no section \[1.3.0\]: write it"):
        version_of(tmp_path)
    assert sections(tmp_path) == ["Unreleased", "1.2.3"]


def test_this_tree_could_be_released() -> None:
    assert version_of(ROOT) in sections(ROOT)


@pytest.mark.process
def test_a_missing_interpreter_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("release.__main__.require_committed", lambda root: None)
    assert main(["--tools", "none", "--pythons", "python2.9"]) == 1
    assert "not released: no interpreter python2.9: name others with PYTHONS='…'" in capsys.readouterr().err
