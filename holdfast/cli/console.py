"""`holdfast -A shop console`: serves pages that show the application as it runs, until it is asked to end."""

from __future__ import annotations

import asyncio
import logging
import signal
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options.application import Application, load_application
from holdfast.cli.options.context import globals_of
from holdfast.cli.output import note

if TYPE_CHECKING:
    from holdfast.console.asking.why import Load

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    help=(
        "Serve pages that show the application as it runs: what is unhealthy, workers, tables, groups and"
        " more. Ctrl-C ends it."
    )
)
def console(
    context: typer.Context,
    port: Annotated[int | None, typer.Option(help="As --set console_port=PORT.")] = None,
    bind: Annotated[str | None, typer.Option(help="As --set console_bind=ADDRESS.")] = None,
) -> None:
    chosen = globals_of(context)
    chosen.flags |= {
        name: value for name, value in (("console_port", port), ("console_bind", bind)) if value is not None
    }
    if not chosen.verbose:
        # A page that fails says that the log has the cause, and a connection that is refused sees nothing of
        # it.
        logging.getLogger("holdfast.console").setLevel(logging.ERROR)
        logging.getLogger("holdfast.web").setLevel(logging.WARNING)
    application = load_application(chosen.application, chosen.settings())
    asyncio.run(_serve(application, partial(load_application, chosen.application, chosen.settings())))


async def _serve(application: Application, load: Load) -> None:
    from holdfast.console.server import Console

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    console = Console(application.settings, application.processors, load=load)
    opening = asyncio.create_task(console.__aenter__())
    ending = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait({opening, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            return
        await opening
        note(f"the console of {application.settings.app}: {console.url} (Ctrl-C ends it)")
        await ending
    finally:
        ending.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await console.__aexit__(None, None, None)
