"""A Spark session that starts quickly and quietly on a small machine, and that has an owner who ends its
JVM.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

from holdfast.class_archive import ClassArchive
from holdfast.errors import SparkError
from holdfast.jars import cache_folder, find_java, spark_jars
from holdfast.pipeline.spark.defaults import spark_defaults
from holdfast.pipeline.spark.errors import (
    in_log,
    is_of_spark,
    said_of_executors,
    session_failed,
    with_log,
)
from holdfast.pipeline.spark.executors import ExecutorWatch, SessionCluster, log_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

START_DEADLINE_S = 120.0
"""The time for Spark to start, in addition to the wait for a cluster."""
STOP_DEADLINE_S = 60.0
ARCHIVE_DEADLINE_S = 300.0
"""The time for a JVM to end that writes its archive of classes: 15 s of a core. Cut short, it would leave
that to the next JVM, and that to the next.
"""
ABANDON_DEADLINE_S = 10.0
WORKER_DAEMON = "holdfast.pipeline.worker_daemon"
"""The module that forks the Python workers of Spark on this machine."""
FOUND_DEADLINE_S = 60.0
LOGS_KEPT = 10
_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the JVM that only puts Spark's command line together: it is over before better code would pay."""
_INSTALL = (
    "pip install 'holdfast[spark]' (pyspark 4.0.0 and delta-spark 4.0.0), or use --engine local, which needs"
    " no JVM"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """The settings of a Spark session.

    *master* is a Spark master; `local[*]` takes every core of this machine. *memory* is the driver's heap,
    which in a local master is all there is (None: 1g there, and Spark's own default on others). *quick*
    compiles less: for jobs of seconds, at the price of a lower rate in long ones. *conf* is added last, so it
    wins. *log_dir* takes all that Spark says; by default a folder of the user's cache. A job on a cluster
    that has no executor for *executors_timeout_s* is ended with a SparkError.
    """

    master: str = "local[*]"
    memory: str | None = None
    quick: bool = False
    app_name: str = "holdfast"
    conf: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path | None = None
    executors_timeout_s: float = 300.0

    @property
    def in_one_jvm(self) -> bool:
        return self.master == "local" or self.master.startswith("local[")


def cores_of(master: str) -> int:
    """Return the number of tasks a local master runs at once; 2 for a cluster, whose size only its manager
    knows.

    >>> cores_of("local[3]"), cores_of("local"), cores_of("spark://host:7077")
    (3, 1, 2)
    """
    if master == "local":
        return 1
    if not master.startswith("local["):
        return 2
    inside = master.removeprefix("local[").partition("]")[0].partition(",")[0]
    return os.cpu_count() or 1 if inside == "*" else int(inside)


@contextlib.contextmanager
def open_session(options: SparkOptions | None = None) -> Iterator[SparkSession]:
    """Give a session with Delta Lake and the Kafka connector; its JVM is gone when the block ends.

    A session that is already active in this process (a notebook, spark-submit) is used as it is and left
    running: its settings are its owner's, who then has to provide Delta where tables are written as Delta.
    """
    options = options or SparkOptions()
    sql = import_pyspark()
    active = active_session()
    if active is not None:
        yield active
        return
    if under_spark_submit():  # the JVM exists and belongs to spark-submit
        session = sql.SparkSession.builder.appName(options.app_name).getOrCreate()
        try:
            with _watched(session, options):
                yield session
        finally:
            session.stop()
        return
    archive = archive_of(options)
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-spark-"))
    try:
        session, gateway = _start(options, archive, scratch)
        try:
            # The active session is one of a thread.
            sql.SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
            with _watched(session, options, _log_path(options)):
                yield session
        except Exception as error:
            told = with_log(error, _log_path(options))
            _stop(session, gateway, archive)
            _keep(archive)
            if told is error:
                raise
            raise told from error
        except BaseException:
            _abandon(gateway)
            raise
        _stop(session, gateway, archive)
        _keep(archive)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _watched(session: SparkSession, options: SparkOptions, log: Path | None = None) -> Iterator[None]:
    """End jobs inside the block that no executor takes; their failure then names the reason."""
    master = str(session.sparkContext.master)
    if SparkOptions(master=master).in_one_jvm:
        yield
        return
    log_executors(session)
    watch = ExecutorWatch(SessionCluster(session), options.executors_timeout_s)
    watch.start()
    try:
        yield
    except Exception as error:
        if watch.starved is not None and (is_of_spark(error) or type(error) is SparkError):
            raise SparkError(f"{watch.starved}{said_of_executors(log)}") from error
        raise
    finally:
        watch.close()


def active_session() -> SparkSession | None:
    """Return the session that is active in this thread, None where there is none.

    One whose JVM is gone is forgotten, so that the next can start; SparkError under spark-submit, which alone
    could start it.
    """
    if "pyspark.sql" not in sys.modules:
        return None
    try:
        active: SparkSession | None = sys.modules["pyspark.sql"].SparkSession.getActiveSession()
    except Exception as error:
        if not (isinstance(error, AssertionError) or is_of_spark(error)):  # pyspark asserts that there is one
            raise
        if under_spark_submit():
            raise SparkError(
                "the JVM that spark-submit started is gone: it was killed, or out of memory"
                " (spark.driver.memory). Submit the program again"
            ) from error
        logger.warning("the JVM of the active Spark session is gone: the next work on Spark starts another")
        _forget_gone()
        return None
    return active


def is_gone(session: SparkSession) -> bool:
    """Return whether the JVM of a session is gone."""
    try:
        session.sparkContext._jvm.java.lang.System.nanoTime()  # type: ignore[union-attr]
    except Exception as error:
        if isinstance(error, AttributeError) or is_of_spark(error):
            return True
        raise
    return False


def under_spark_submit() -> bool:
    """Return whether this process was started by spark-submit, which has a JVM for it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def import_pyspark() -> Any:
    """Return `pyspark.sql`; raises SparkError, which says what to install, where there is none."""
    try:
        import pyspark.sql
    except ImportError as error:
        raise SparkError(f"{error.name or error} is not installed: {_INSTALL}") from error
    return pyspark.sql


def _start(options: SparkOptions, archive: ClassArchive | None, scratch: Path) -> tuple[SparkSession, Any]:
    """Return a session and the gateway to its JVM.

    Both are made in a thread of their own, to the end even when this one is interrupted: pyspark's launcher,
    cut short, leaves an unknown JVM that does not notice the end of this process. Also, pyspark would replace
    its caller's handler of Ctrl-C, but only in the main thread.
    """
    # -P keeps this folder's `tables` and `agents` from shadowing other packages.
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = _python(options), sys.executable
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LAUNCHER)
    if options.in_one_jvm:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-spark") as pool:
        starting = pool.submit(_launch, options, archive, scratch)
        try:
            session, gateway = starting.result()
        except BaseException:
            if not starting.done() or starting.exception() is None:
                _abandon(starting.result()[1])
            raise
    return session, gateway


def _python(options: SparkOptions) -> str:
    """Return the Python of the workers: this one (Spark would take PATH's first python3), or the requested
    one on a cluster, whose machines may have it elsewhere.
    """
    if options.in_one_jvm:
        return sys.executable
    asked = options.conf.get(_PYTHON) or spark_defaults().get(_PYTHON) or os.environ.get("PYSPARK_PYTHON")
    return asked or sys.executable


def _launch(options: SparkOptions, archive: ClassArchive | None, scratch: Path) -> tuple[SparkSession, Any]:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    log_path = _new_log(options)
    conf = SparkConf(loadDefaults=False).setAll(list(settings(options, archive, scratch).items()))
    with log_path.open("ab") as log:
        # Everything Spark says goes through the JVM's two streams; only the JVM gets them, this process keeps
        # its own.
        try:
            gateway = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        except Exception as error:
            raise SparkError(f"Spark's JVM did not start: {error}{in_log(log_path)}") from error
    limit_s = START_DEADLINE_S + options.executors_timeout_s
    late = Timer(limit_s, gateway.proc.kill)  # a manager of a cluster may keep it waiting
    late.start()
    try:
        SparkContext._ensure_initialized(gateway=gateway)
        return SparkSession.builder.config(conf=conf).getOrCreate(), gateway
    except Exception as error:  # noqa: BLE001  py4j raises anything
        told = session_failed(error, log_path)  # while there is a JVM to ask what it was
        if late.finished.is_set():
            told = SparkError(f"no Spark session within {limit_s:g} s (see --master){in_log(log_path)}")
        _end(gateway)
        raise told from None  # with the JVM gone, py4j's own error cannot even be printed
    finally:
        late.cancel()


def archive_of(options: SparkOptions) -> ClassArchive | None:
    """Return the archive of Spark's classes that the first session of a user makes; None for a cluster."""
    if not options.in_one_jvm:
        return None
    import pyspark

    folder = cache_folder() / "spark"
    folder.mkdir(parents=True, exist_ok=True)
    installed = f"{pyspark.__file__} {pyspark.__version__}"
    return ClassArchive.of(folder, find_java(), [installed, *spark_jars()])


def _keep(archive: ClassArchive | None) -> None:
    if archive is not None:
        archive.keep()


def settings(options: SparkOptions, archive: ClassArchive | None, scratch: Path) -> dict[str, str]:
    """Return the configuration of a session: what holdfast's tables need, and on one machine what makes Spark
    small.

    On a cluster the rest is its owner's, by `spark-defaults` and *conf*, which wins.
    """
    conf = {
        "spark.app.name": options.app_name,
        "spark.master": options.master,
        "spark.sql.session.timeZone": "UTC",
        # Spark's default is INT96, which other readers take for nanoseconds: a fold by time then differs
        # without any error.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Written by default, and not compared by default.
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        "spark.sql.extensions": _EXTENSION,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Small enough for records of many KB; a fold runs no faster on larger ones.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
        "spark.executorEnv.PYTHONSAFEPATH": "1",
    }
    if options.memory is not None:
        conf["spark.driver.memory"] = options.memory
    conf |= _in_one_jvm(options, archive, scratch) if options.in_one_jvm else _on_cluster()
    given = dict(options.conf)
    if not options.in_one_jvm:
        given = {name: told for name, told in spark_defaults().items() if name in _LISTS} | given
    for name in _LISTS & given.keys() & conf.keys():  # our entries are needed in addition to the user's
        given[name] = ",".join(dict.fromkeys([*conf[name].split(","), *given[name].split(",")]))
    return conf | given


_PYTHON = "spark.pyspark.python"
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_LISTS = frozenset({"spark.jars", "spark.sql.extensions"})


def _on_cluster() -> dict[str, str]:
    return {"spark.jars": ",".join(str(path) for path in spark_jars())}


def _in_one_jvm(options: SparkOptions, archive: ClassArchive | None, scratch: Path) -> dict[str, str]:
    """Return the settings by which Spark starts quickly and stays small: few partitions, no UI, local paths
    inside *scratch*.
    """
    partitions = str(max(2, cores_of(options.master)))
    flags = [
        f"-Djava.io.tmpdir={scratch}",
        *(["-XX:TieredStopAtLevel=1"] if options.quick else []),
        *(archive.flags() if archive else []),
    ]
    return {
        "spark.driver.memory": options.memory or "1g",
        "spark.driver.extraJavaOptions": " ".join(flags),
        # The class path starts 1-2 s sooner than spark.jars, but reaches this JVM only.
        "spark.driver.extraClassPath": os.pathsep.join(str(path) for path in spark_jars()),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.shuffle.compress": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": partitions,
        "spark.default.parallelism": partitions,
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.databricks.delta.snapshotPartitions": "2",
        **({"spark.python.daemon.module": WORKER_DAEMON} if is_found_anew(WORKER_DAEMON) else {}),
    }


@cache
def is_found_anew(module: str) -> bool:
    """Return whether a newly started Python finds *module* where this process does: one that has changed its
    `sys.path` may have another, or the only one.
    """
    program = f"from importlib.util import find_spec; print(find_spec({module!r}).origin)"
    try:
        found = subprocess.run(
            [sys.executable, "-c", program],  # no -P: Spark's `-m` looks in the working folder first, too
            capture_output=True,
            text=True,
            timeout=FOUND_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    here = importlib.util.find_spec(module)
    return here is not None and found.stdout.strip() == here.origin


def _log_path(options: SparkOptions) -> Path:
    return (options.log_dir or cache_folder() / "spark" / "logs") / f"spark-{os.getpid()}.log"


def _new_log(options: SparkOptions) -> Path:
    """Return the path of a session's new log; the oldest logs are removed."""
    path = _log_path(options)
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    by_age = sorted(folder.glob("spark-*.log"), key=lambda path: path.stat().st_mtime)
    for old in by_age[: max(0, len(by_age) - LOGS_KEPT + 1)]:
        old.unlink(missing_ok=True)
    return path


def _stop(session: SparkSession, gateway: Any, archive: ClassArchive | None) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # "unable to cleanly shutdown": a JVM that was killed
            session.stop()
    except Exception as error:  # noqa: BLE001  whatever it is, the JVM is ended next
        # Nearly always a JVM that died before; the losses were reported where they were missed. It ends now
        # in any case.
        logger.info("Spark did not stop by itself: %(cause)r", {"cause": error})
        _forget()
    finally:
        _end(gateway, STOP_DEADLINE_S if archive is None or archive.made_at is None else ARCHIVE_DEADLINE_S)


def _end(gateway: Any, deadline_s: float = STOP_DEADLINE_S) -> None:
    """Close the JVM as its launcher does (end of input), wait for it, and let this process start another
    one later.
    """
    with contextlib.suppress(Exception):  # a JVM that died already has nothing to shut down
        gateway.shutdown()
    _close(gateway, deadline_s)


def _abandon(gateway: Any) -> None:
    """End the JVM without another word to it: the answer to a call that was interrupted may still lie in
    the connection.
    """
    _close(gateway, ABANDON_DEADLINE_S)
    _forget()


def _forget_gone() -> None:
    """Make pyspark forget a JVM that is gone with its session, and end the rest of the connection."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    _forget()
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is None:
        return
    with contextlib.suppress(Exception):  # the other end is closed
        gateway.shutdown()
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()  # where it hangs rather than is gone
        process.wait()


def _forget() -> None:
    """Make pyspark forget a session whose JVM is gone, so that another can start."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _close(gateway: Any, deadline_s: float) -> None:
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] = gateway.proc
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    if SparkContext._gateway is gateway:
        SparkContext._gateway = SparkContext._jvm = None
