"""A worker's report of why it leaves: an operating error in one line, whatever raised it; a traceback is for
bugs.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import faust
from faust.cli.worker import worker as faust_worker
from faust.utils.terminal import SpinnerHandler
from mode.worker import EX_FAILURE

from holdfast.agents.faust.process.outages import outages
from holdfast.errors import HoldfastError
from holdfast.logs import use_format
from holdfast.terminal import escape_what_is_not_shown

logger = logging.getLogger(__name__)

CRASHED = "Crashed reason=%r"
"""The text that mode logs of each service that crashed, often outside of any handler, so that "NoneType:
None" replaces the traceback.
"""

LEAVING = "leaving: %(reason)s"
STARTING = "starting %(app)s: web %(web)s, brokers %(brokers)s, stores %(data)s"
"""The text of the banner where each line is JSON."""

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


class LinesLogged:
    """The number of lines that the handlers of the root logger have let pass in this process."""

    def __init__(self) -> None:
        self.count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Count *record*, and let it pass."""
        self.count += 1
        return True


lines_logged = LinesLogged()


def one_line(error: BaseException) -> str:
    r"""Return the text of *error* as one line.

    >>> one_line(HoldfastError("topic orders:\n  does not exist"))
    'topic orders: does not exist'
    """
    return " ".join(str(error).split())


def one_line_of_bug(error: Exception) -> str:
    r"""Return a bug's type and message, and the user's line that met it if there is one, as one line.

    >>> one_line_of_bug(ValueError("no\nnumber"))
    'ValueError: no number'
    """
    return f"{_place(error.__traceback__)}{type(error).__name__}: {one_line(error)}"


def _show_banner(command: Any, worker: Any) -> None:
    """Do what Faust's command does before a worker starts; where log lines are JSON, one of them says it."""
    if worker.app.settings.log_format != "json":
        command.say(command.banner(worker))


faust_worker.on_worker_created = _show_banner  # type: ignore[method-assign, assignment]


class Worker(faust.Worker):
    """Faust's worker process.

    It leaves with 1 after an error, and logs its cause: in one line if it is an operating error, after the
    traceback of a bug. Where the end of all services has logged anything after it, that line comes once more
    as the last.
    """

    app: Any
    _told: str | None = None
    """Why it leaves."""
    _lines_when_told = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        escape_what_is_not_shown()  # before the banner, which has letters that no ASCII has
        super().__init__(*arguments, **options)

    def _say(self, msg: str, file: Any = None, end: str = "\n", **kwargs: Any) -> None:
        if self.app.settings.log_format != "json":  # of which each line is an object
            super()._say(msg, file, end, **kwargs)

    async def start(self) -> None:
        """Start everything; an operating error ends the worker as a crash does."""
        if sys.__stderr__ is not None and not faulthandler.is_enabled():
            faulthandler.enable(sys.__stderr__)  # a crash of native code prints where it was
        try:
            await super().start()
        except HoldfastError as error:
            self._tell(error)

    def _crash(self, reason: BaseException) -> None:
        if isinstance(reason, Exception):
            self._tell(reason)
        super()._crash(reason)

    def _tell(self, error: Exception) -> None:
        if self._told is not None:
            return  # what fails because of the first failure is not worth another line
        text = one_line(error) if isinstance(error, HoldfastError) else one_line_of_bug(error)
        self._told = self.app.worded(text) if self.app.worded is not None else text
        self._log_cause()
        if self.logfile:  # the operator looks here first
            print(f"holdfast: {self._told}", file=self.stderr)

    def _log_cause(self) -> None:
        logger.critical(LEAVING, {"reason": self._told})
        self._lines_when_told = lines_logged.count

    def on_setup_root_logger(self, logger: logging.Logger, level: int) -> None:
        """Log each crash once, not again by each service that it passes, and in the form of the settings."""
        super().on_setup_root_logger(logger, level)
        settings = self.app.settings
        use_format(settings.log_format)
        if settings.log_format == "json":
            told = {"app": settings.app, "web": str(self.app.conf.canonical_url)}
            told |= {"brokers": settings.bootstrap_servers, "data": str(settings.data_dir)}
            logger.info(STARTING, told)
        for handler in logger.handlers:
            handler.addFilter(shortened)
            handler.addFilter(outages.filter)
            if not isinstance(handler, SpinnerHandler):  # it sees all, and draws only that time passes
                handler.addFilter(lines_logged.filter)  # the last: it counts what the others let pass

    def stop_and_shutdown(self) -> None:
        """End everything. A failure in that is reported: mode would leave with 1 and without a word."""
        try:
            super().stop_and_shutdown()
        except Exception as error:
            if self._told is None:
                logger.error("the worker did not end in good order", exc_info=error)
                self._tell(error)
            raise

    def _shutdown_loop(self) -> None:
        if self._told is not None:
            self.crash_reason = None  # stock raises it once more, for its traceback
        try:
            super()._shutdown_loop()
        except (Exception, asyncio.CancelledError):
            if self._told is None:  # else the error is of a task that ends because of the logged one
                raise
        if self._told is not None:
            if lines_logged.count != self._lines_when_told:
                self._log_cause()  # of twenty lines about the end of services, a person reads the last
            raise SystemExit(EX_FAILURE)


def shortened(record: logging.LogRecord) -> bool:
    """Return whether to log *record* at all: not a crash that `Worker` reports.

    Holdfast's log lines about an operating error have no traceback, and a crash by a bug has the bug's.
    """
    if (
        str(record.msg).endswith(CRASHED)
        and isinstance(record.args, tuple)
        and isinstance(reason := record.args[0], BaseException)
    ):
        record.exc_info = type(reason), reason, reason.__traceback__
        return not isinstance(reason, HoldfastError)
    if (
        record.exc_info
        and isinstance(record.exc_info[1], HoldfastError)
        and record.name.startswith("holdfast.")
    ):
        record.exc_info = None
    return True


def tell_in_one_line(before: Hook) -> Hook:
    """Return a `sys.excepthook` that prints an operating error in one line with the user's line that met it,
    and leaves others to *before*.

    A setting or a declaration is refused while the user's module is imported, in a process that is Faust's or
    the user's own. `python -X dev` shows the traceback all the same.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, HoldfastError) and not sys.flags.dev_mode:
            print(f"holdfast: {_place(trace)}{one_line(error)}", file=sys.stderr)
        else:
            before(kind, error, trace)

    return hook


def _place(trace: TracebackType | None) -> str:
    """Return "file:line: " of the last frame that is neither ours nor a library's."""
    libraries = [
        str(Path(__file__).parents[3]),
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib", "scripts")),
        "<",
    ]
    for frame in reversed(traceback.extract_tb(trace)):
        if not frame.filename.startswith(tuple(libraries)):
            return f"{frame.filename}:{frame.lineno}: "
    return ""
