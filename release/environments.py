"""Empty virtual environments that a wheel is installed in, as its users install it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from release.errors import ReleaseError

INSTALL_LIMIT_S = 900.0


def empty(python: str, folder: Path) -> Path:
    """Make an environment of *python* in *folder*, with nothing but pip; return its folder of programs."""
    told([python, "-m", "venv", str(folder)], folder.parent)
    return folder / "bin"


def install(programs: Path, wheel: Path, extras: Sequence[str]) -> None:
    """Install *wheel* with *extras* (none for the light base), and see that all fits together."""
    wanted = f"holdfast[{','.join(extras)}] @ {wheel.as_uri()}" if extras else wheel.as_uri()
    pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check"]
    told([*pip, "install", "--quiet", wanted], programs, limit_s=INSTALL_LIMIT_S)
    told([*pip, "check"], programs)


def told(
    command: Sequence[str],
    folder: Path,
    *,
    limit_s: float = 120.0,
    programs: Path | None = None,
    settings: dict[str, str] | None = None,
) -> str:
    """Return what *command* printed; it sees nothing of this process's Python, nor of its settings.

    Raises ReleaseError, with all it printed, if it fails or takes longer than *limit_s*.
    """
    environment = surroundings(programs, settings)
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"{' '.join(command)} took longer than {limit_s:.0f} s") from error
    if done.returncode:
        raise ReleaseError(
            f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}".rstrip()
        )
    return done.stdout


def surroundings(programs: Path | None = None, settings: dict[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a stranger's shell: *programs* first on the path, and *settings* of
    holdfast.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOLDFAST_"))}
    kept.pop("VIRTUAL_ENV", None)
    if programs is not None:
        kept["PATH"] = f"{programs}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return kept | (settings or {})


def version_named(python: str) -> str:
    """Return MAJOR.MINOR of the interpreter *python*; raise ReleaseError if none answers to that name."""
    code = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    try:
        return told([python, "-c", code], Path(sys.prefix)).strip()
    except OSError as error:
        raise ReleaseError(f"no interpreter {python}: name others with PYTHONS='…'") from error
