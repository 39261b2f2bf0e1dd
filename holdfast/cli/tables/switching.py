"""`holdfast tables switch`: shows which version of a table is current, and makes another one current."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.options.application import load_application
from holdfast.cli.options.asking import TIMEOUT_S, TimeoutOption
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import Cell, note, show
from holdfast.clients.tables.directory import Workers
from holdfast.clients.tables.switching import TableSwitch, unserved
from holdfast.errors import ConfigError

COLUMNS = ("table", "version", "current", "served", "missing")


def switch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="PROCESSOR", help="The processor of the table.")],
    to: Annotated[
        int | None, typer.Option("--to", metavar="VERSION", min=1, help="Make this version current.")
    ] = None,
    back: Annotated[
        bool, typer.Option("--back", help="Make the version current that was current before the last switch.")
    ] = False,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    if to is not None and back:
        raise ConfigError(
            "--to and --back: one names the version, the other takes the last switch back; choose one"
        )
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    table = TableSwitch(application.settings, application.processor(name).name, timeout_s=timeout)
    if to is None and not back:
        found = _versions(table.table, table.read())
        show(found, COLUMNS, output_of(context))
        if not found:
            note(f"no worker serves {table.table}: start one, or wait until it is ready")
        return
    written = table.back() if to is None else table.to(to)
    note(f"version {written.version} of {written.table} is current, in place of {written.before or 'none'}")


def _versions(table: str, workers: Workers) -> list[dict[str, Cell]]:
    versions = workers.versions(table)
    current = workers.answering(table, versions) if versions else 0
    return [
        {
            "table": table,
            "version": version,
            "current": version == current,
            "served": not (missing := unserved(workers, table, version)),
            "missing": missing,
        }
        for version in versions
    ]
