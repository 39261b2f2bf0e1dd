"""Explains Spark's failures: the cause is deep in a chain of Java exceptions, or inside a worker's
traceback.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from holdfast.errors import LakeError, LostRecordsError, PipelineError, SparkError, UnreadableError

LIMIT_CAUSES = 30
LOG_TAIL_BYTES = 1 << 16
_GIVEN_UP = (
    "Cannot call methods on a stopped SparkContext",
    "SparkContext was shut down",
    "Master removed our application",
)
_ERRORS = (" ERROR ", " FATAL ", "Exception in thread ")
_ENDED = tuple(f" is now {state}" for state in ("EXITED", "FAILED", "LOST", "KILLED"))
_AWAITED = ("Initial job has not accepted any resources",)
GONE = "Py4JNetworkError"
_OURS = {
    f"{each.__module__}.{each.__qualname__}": each
    for each in (LostRecordsError, UnreadableError, LakeError, PipelineError)
}
"""Errors with which our own tasks may end: the same as in this process."""
_AT_START = ("Error from python worker:", "reading the port number", "PythonWorkerFactory.createWorker")
"""Spark's messages about a Python that it starts and that does not begin to work."""
_CUT_OFF = "An error occurred while calling "
"""The beginning of py4j's plain error when the JVM has ended in the middle of a call; an answer has a trace
with it.
"""


class explained:
    """Turns a failure of Spark inside the block into a typed error; other errors pass."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and is_of_spark(error):
            raise failed(error, self._what) from error


def is_of_spark(error: Exception) -> bool:
    """Return whether an error comes from Spark; a refused connection is all that is left of a JVM that
    died.
    """
    return type(error).__module__.partition(".")[0] in ("py4j", "pyspark", "delta") or isinstance(
        error, ConnectionError
    )


def causes(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield (class, message) of a Spark failure and of everything that caused it, outermost first."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    yield type(error).__name__, "" if java is not None else str(error)
    for _ in range(LIMIT_CAUSES):
        if java is None:
            return
        try:
            found = str(java.getClass().getName()), str(java.getMessage())
            java = java.getCause()
        except Exception as gone:
            if not is_of_spark(gone):
                raise
            yield GONE, ""
            return
        yield found


def failed(error: Exception, what: str) -> PipelineError:
    """Return the error to raise for a failed job of Spark."""
    chain = list(causes(error))
    for name, message in chain:
        ours, _, told = _telling(message).partition(": ")
        if ours in _OURS:
            return _OURS[ours](told)
        if isinstance(error, ConnectionError) or GONE in name or _is_cut_off(name, message):
            return SparkError(
                f"{what}: Spark's JVM is gone: it was killed, or out of memory (see --memory), or gave up"
            )
        if any(each in message for each in _GIVEN_UP):
            return SparkError(
                f"{what}: Spark has given up, as it does without a master or executors (see --master):"
                f" {message.splitlines()[0][:300]}"
            )
        if (cure := _without_python(message)) is not None:
            return SparkError(f"{what}: {cure}")
        if "spark.driver.maxResultSize" in message:
            return SparkError(
                f"{what}: the result is too large to come through the driver: write it with --out, or raise"
                " --memory"
            )
    if (killed := next((died for _, message in chain if (died := _killed_again(message))), None)) is not None:
        return SparkError(f"{what}: {killed}")
    name, message = next(
        ((name, message) for name, message in reversed(chain) if message and message != "None"), chain[-1]
    )
    return SparkError(f"{what}: {name.rpartition('.')[2]}: {_telling(message)}")


def _without_python(message: str) -> str | None:
    """Return the fault of the Python of a worker that cannot run our tasks, None if it has none.

    >>> _without_python('Cannot run program "/opt/py": error=2, No such file or directory')
    "a worker cannot run its Python, /opt/py: set spark.pyspark.python to one of this driver's version that has this package's dependencies"
    """  # noqa: E501
    cure = "set spark.pyspark.python to one of this driver's version that has this package's dependencies"
    if found := re.search(r'Cannot run program "([^"]*)"', message):
        return f"a worker cannot run its Python, {found[1]}: {cure}"
    if (ended := _ended_at_start(message)) is not None:
        return f"{ended}: {cure} ({sys.version_info.major}.{sys.version_info.minor})"
    # Python's own words, or those of `holdfast.extras` where one of our modules asked.
    missing = r"ModuleNotFoundError: (?:No module named '([^']*)'|\S+ needs (\S+), which is not installed)"
    if found := re.search(missing, message):
        return f"the Python of a worker has no module {found[1] or found[2]}: install it there, or {cure}"
    if "PYTHON_VERSION_MISMATCH" in message:
        versions = re.search(r"Python in worker has different version[^\n]*", message)
        return f"{'the worker has another Python' if versions is None else versions[0][:200]}: {cure}"
    return None


def _ended_at_start(message: str) -> str | None:
    """Return the way the Python of a worker ended before it could take work, as one too old for pyspark does;
    None where it did not, or where it lacks one of our own packages.

    >>> _ended_at_start("Error from python worker:\\n  File '/opt/lib/python3.8/runpy.py'\\n  TypeError: no\\nPYTHONPATH was:")
    'the Python of a worker ended before it took work, it is 3.8 (TypeError: no)'
    """  # noqa: E501
    if not any(each in message for each in _AT_START):
        return None
    said = message.partition("Error from python worker:")[2].partition("PYTHONPATH was:")[0]
    version = re.search(r"[/\\]python(\d+\.\d+)[/\\]", said)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if "ModuleNotFoundError" in said and (version is None or version[1] == here):
        return None
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
    which = "" if version is None else f", it is {version[1]}"
    return f"the Python of a worker ended before it took work{which}" + (f" ({last[:200]})" if last else "")


def _killed_again(message: str) -> str | None:
    """Return the end of a task whose executors, or workers, died each time it was tried; None for another
    failure.

    >>> lost = "Lost task 0.3 in stage 1.0 (TID 5) (10.0.0.7 executor 3): ExecutorLostFailure (executor 3 exited) Reason: Command exited with code 137"
    >>> _killed_again(f"Job aborted: Task 0 in stage 1.0 failed 4 times, most recent failure: {lost}")
    'a task was given up after 4 attempts, the last one on 10.0.0.7 executor 3: its executor ended (Command exited with code 137). Were they short of memory? See spark.executor.memory and --state-memory-mb'
    """  # noqa: E501
    given_up = re.search(
        r"failed (\d+) times, most recent failure: [^(]*\(TID \d+\) \(([^)]*)\): (.*)", message
    )
    if given_up is None:
        return None
    times, where, failure = given_up.groups()
    if "ExecutorLostFailure" in failure:
        died = f"its executor ended ({failure.rpartition('Reason: ')[2][:200]})"
    elif "Python worker exited unexpectedly" in failure:
        died = "its Python was killed, or crashed"
    else:
        return None
    return (
        f"a task was given up after {times} attempts, the last one on {where}: {died}. Were they short of"
        " memory? See spark.executor.memory and --state-memory-mb"
    )


def _is_cut_off(name: str, message: str) -> bool:
    return name == "Py4JError" and message.startswith(_CUT_OFF) and "Trace:" not in message


def session_failed(error: Exception, log: Path) -> SparkError:
    """Return the error to raise when no session came to be. The JVM must still run: it is asked what
    happened.
    """
    what = "no Spark session"
    told = failed(error, what) if is_of_spark(error) else SparkError(f"{what}: {str(error)[:500]}")
    return SparkError(f"{told}{in_log(log)}")


def with_log(error: Exception, log: Path) -> Exception:
    """Return an error of Spark with the last error in its log, and where the log is; other errors as they
    are.

    What comes straight from Spark becomes a typed error. The JVM must still run: it is asked what happened.
    """
    told = failed(error, "Spark") if is_of_spark(error) else error
    return SparkError(f"{told}{in_log(log)}") if type(told) is SparkError else told


def in_log(log: Path) -> str:
    """Return the end of an error's text: the last error in Spark's log, and where the log is."""
    last = last_error(log)
    said = f'; the last error that Spark logged is "{last}"' if last else ""
    return f"{said}; Spark's log is {log}"


def said_of_executors(log: Path | None) -> str:
    """Return Spark's last line about executors that ended, or else that it waits for some; "" for nothing."""
    said = "" if log is None else _last_line(log, _ENDED) or _last_line(log, _AWAITED)
    return f'; Spark said "{said}"' if said else ""


def last_error(log: Path) -> str:
    """Return the last line near the end of a log of Spark with an error, or with the reason for the end of
    the JVM; "" for none.
    """
    return _last_line(log, _ERRORS)


def _last_line(log: Path, wanted: Sequence[str]) -> str:
    try:
        with log.open("rb") as opened:
            opened.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            lines = opened.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line[:300] for line in reversed(lines) if any(each in line for each in wanted)), "")


def _telling(message: str) -> str:
    """Return the end of a worker's traceback, which names the error, or the beginning of any other message.

    >>> _telling("Traceback (most recent call last):\\n  File x\\nValueError: no")
    'ValueError: no'
    """
    if "Traceback (most recent call last)" not in message:
        return message[:500]
    lines = [line for line in message.strip().splitlines() if line and not line.startswith((" ", "\t"))]
    return lines[-1][:500] if lines else message[-500:]
