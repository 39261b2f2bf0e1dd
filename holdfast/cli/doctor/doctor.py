"""`holdfast doctor`: the environment of a worker of the application, a line for each check, with the remedy
of a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from holdfast.cli.cures import with_application
from holdfast.cli.doctor.diagnosis import Diagnosis, Fitness, errors_of
from holdfast.cli.options.application import Application, load_application
from holdfast.cli.options.context import Globals, globals_of
from holdfast.cli.output import note, show
from holdfast.config import Settings
from holdfast.errors import ConfigError

COLUMNS = ("check", "state", "found", "cure")
NAME_ONE = "holdfast -A MODULE doctor looks at its topics and rights"

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    help="Check Python, extras, JDK, settings, disk, broker, topics, rights and clocks; say what to do."
)
def doctor(
    context: typer.Context,
    offline: Annotated[bool, typer.Option("--offline", help="Connect to no broker.")] = False,
) -> None:
    chosen = globals_of(context)
    found = list(diagnoses(chosen, offline=offline))
    show(
        [
            {
                "check": each.check,
                "state": str(each.fitness),
                "found": each.found,
                "cure": with_application(each.cure, chosen.application),
            }
            for each in found
        ],
        COLUMNS,
        chosen.output,
    )
    errors = sum(each.fitness is Fitness.ERROR for each in found)
    if errors:
        note(f"{errors} {'error' if errors == 1 else 'errors'}: a worker cannot do its work here")
        raise typer.Exit(1)


def diagnoses(chosen: Globals, *, offline: bool) -> Iterator[Diagnosis]:
    """Yield everything that is found; what rests on settings that cannot be read is left out."""
    from holdfast.cli.doctor.machine import machine

    try:
        settings = chosen.settings()
    except ConfigError as error:
        yield from errors_of("settings", error)
        yield from machine(Settings())
        return
    application = None
    if chosen.application is None:
        yield Diagnosis(check="application", fitness=Fitness.ABSENT, found="none is named", cure=NAME_ONE)
    else:
        try:
            application = load_application(chosen.application, settings)
            settings = application.settings
        except ConfigError as error:
            yield from errors_of("application", error)
        else:
            yield Diagnosis(check="application", fitness=Fitness.OK, found=_told(application))
    yield from machine(settings)
    if not offline:
        from holdfast.cli.doctor.cluster import cluster

        yield from cluster(settings, application)


def _told(application: Application) -> str:
    names = ", ".join(processor.name for processor in application.processors)
    return f"{application.settings.app}: {names or 'no processors'}"
