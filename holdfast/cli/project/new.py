"""`holdfast new NAME`: an application with its tests, settings, and what runs it, in a folder of its own."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import resources
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from holdfast.cli.output import note
from holdfast.errors import ConfigError

TEMPLATES = "template"
SUFFIX = ".template"
NAME_IN_PATHS = "NAME"
"""Stands for the project's name in the paths of templates, as $name does in their text."""

_COMMENTED = re.compile(r"(?P<command>    [a-z].*?) {2,}# (?P<comment>.*)")
"""A command of a page, and its comment."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(help="Lay out a project: an application, its tests, settings, Procfile, compose file.")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the application, and of its module.")],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder to lay it out in. [default: one named NAME, here]")
    ] = None,
) -> None:
    require_free_name(name)
    chosen = Path(name) if folder is None else folder
    for path in lay_out(name, chosen):
        note(f"made {path}")
    note(f"next: cd {chosen}; its README.md says how to test and run it")


def require_free_name(name: str) -> None:
    """Raise ConfigError for a name that no module can have, or that another module has.

    >>> require_free_name("shop")
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        told = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        better = (
            f", such as {told}"
            if re.fullmatch(r"[a-z][a-z0-9_]*", told) and not keyword.iskeyword(told)
            else ""
        )
        raise ConfigError(
            f"{name!r} cannot name a project: its module is imported by that name; write lower-case letters,"
            f" digits and _{better}"
        )
    if name in sys.stdlib_module_names or find_spec(name) is not None:
        raise ConfigError(
            f"{name} is a module that is installed here, which the project would hide: choose another name"
        )


def lay_out(name: str, folder: Path) -> list[Path]:
    """Write the project's files into *folder*, which must not exist or be empty; return their paths."""
    files = _rendered(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: name another folder with --dir")
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror}; name another folder with --dir"
        ) from error
    return [folder / path for path in files]


def _rendered(name: str) -> dict[Path, str]:
    """Return the text of each file of the project, by its path below the project's folder."""
    values = {
        "name": name,
        "version": version("holdfast"),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
    }
    with resources.as_file(resources.files(__package__) / TEMPLATES) as root:
        found = sorted(root.rglob(f"*{SUFFIX}"))
        texts = {
            Path(str(path.relative_to(root)).removesuffix(SUFFIX).replace(NAME_IN_PATHS, name)): (
                Template(path.read_text("utf-8")).substitute(values)
            )
            for path in found
        }
    return {path: aligned(text) if path.suffix == ".md" else text for path, text in texts.items()}


def aligned(text: str) -> str:
    """Return *text* with the comments of its commands, indented lines of Markdown, below each other: names
    are of any length.

    >>> aligned("    cd shop        # go\\n    ls   # look\\nmore    # is left\\n").splitlines()
    ['    cd shop    # go', '    ls         # look', 'more    # is left']
    """
    commands = [found for line in text.splitlines() if (found := _COMMENTED.fullmatch(line))]
    width = max((len(found["command"]) for found in commands), default=0)
    return "".join(
        (
            f"{found['command']:<{width}}    # {found['comment']}\n"
            if (found := _COMMENTED.fullmatch(line))
            else f"{line}\n"
        )
        for line in text.splitlines()
    )
