"""Starting Spark: quiet, tuned, and gone afterwards."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast.class_archive import ClassArchive
from holdfast.errors import (
    LakeError,
    LostRecordsError,
    PipelineError,
    SparkError,
    UnreadableError,
)
from holdfast.extras import MissingExtras
from holdfast.jars import spark_jars
from holdfast.pipeline.spark import session
from holdfast.pipeline.spark.errors import failed, in_log, session_failed, with_log
from holdfast.pipeline.spark.session import (
    WORKER_DAEMON,
    SparkOptions,
    _python,
    archive_of,
    cores_of,
    is_found_anew,
    settings,
)
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
def test_a_local_master_gets_its_jars_by_class_path_and_a_cluster_by_upload(tmp_path: Path) -> None:
    jars = [str(path) for path in spark_jars()]
    local = settings(SparkOptions(master="local[3]"), None, tmp_path)
    assert local["spark.driver.extraClassPath"].split(os.pathsep) == jars
    assert local["spark.sql.shuffle.partitions"] == "3"
    cluster = settings(SparkOptions(master="spark://host:7077"), None, tmp_path)
    assert cluster["spark.jars"].split(",") == jars
    assert "spark.driver.extraClassPath" not in cluster


@pytest.mark.long
def test_settings_that_make_spark_small_are_for_this_machine_alone(tmp_path: Path) -> None:
    local = settings(SparkOptions(master="local[3]"), None, tmp_path)
    assert (local["spark.driver.memory"], local["spark.sql.adaptive.enabled"]) == ("1g", "false")
    cluster = settings(SparkOptions(master="spark://host:7077"), None, tmp_path)
    assert set(cluster) == {
        "spark.app.name",
        "spark.master",
        "spark.sql.session.timeZone",
        "spark.sql.parquet.outputTimestampType",
        "spark.hadoop.parquet.page.verify-checksum.enabled",
        "spark.sql.extensions",
        "spark.sql.catalog.spark_catalog",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.executorEnv.PYTHONSAFEPATH",
        "spark.jars",
    }, "the rest is spark-defaults'"
    asked = settings(SparkOptions(master="spark://host:7077", memory="4g"), None, tmp_path)
    assert asked["spark.driver.memory"] == "4g"


def test_jars_and_extensions_of_the_user_are_added_to_those_of_delta(tmp_path: Path) -> None:
    own = {"spark.jars": "mine.jar", "spark.sql.extensions": "my.Extension"}
    conf = settings(SparkOptions(master="yarn", conf=own), None, tmp_path)
    assert conf["spark.jars"].split(",") == [*(str(path) for path in spark_jars()), "mine.jar"]
    assert conf["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,my.Extension"


def test_the_spark_defaults_of_a_cluster_are_added_to_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "spark.jars /mine.jar\nspark.sql.extensions=my.Extension\nspark.pyspark.python /their/python\n"
    (tmp_path / "spark-defaults.conf").write_text(told)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "/of/the/environment")
    options = SparkOptions(master="spark://host:7077")
    conf = settings(options, None, tmp_path)
    assert conf["spark.jars"].split(",") == [*(str(path) for path in spark_jars()), "/mine.jar"]
    assert conf["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,my.Extension"
    assert _python(options) == "/their/python"
    asked = replace(options, conf={"spark.jars": "/asked.jar", "spark.pyspark.python": "/asked/python"})
    assert settings(asked, None, tmp_path)["spark.jars"].endswith(",/asked.jar"), "as Spark itself has it"
    assert _python(asked) == "/asked/python"
    assert "spark.jars" not in settings(SparkOptions(master="local[2]"), None, tmp_path)
    (tmp_path / "spark-defaults.conf").unlink()
    assert "/mine.jar" not in settings(options, None, tmp_path)["spark.jars"]
    (tmp_path / "spark-defaults.conf").mkdir()
    with pytest.raises(SparkError, match=r"spark-defaults\.conf cannot be read.*SPARK_CONF_DIR"):
        settings(options, None, tmp_path)


def test_the_users_settings_win(tmp_path: Path) -> None:
    conf = settings(SparkOptions(conf={"spark.ui.enabled": "true"}), None, tmp_path)
    assert conf["spark.ui.enabled"] == "true"
    assert conf["spark.sql.parquet.outputTimestampType"] == "TIMESTAMP_MICROS"


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[2]", 2), ("local[*]", os.cpu_count()), ("local[4,2]", 4), ("yarn", 2)],
)
def test_cores(master: str, cores: int) -> None:
    assert cores_of(master) == cores


def test_workers_are_forked_from_one_that_has_imported_the_fold(spark: SparkSession) -> None:
    def imported(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            told = [gc.get_freeze_count()] * batch.num_rows
            yield pa.RecordBatch.from_arrays([pa.array(told, pa.int64())], ["frozen"])

    rows = spark.range(0, 2, 1, 2).mapInArrow(imported, "frozen bigint").collect()
    assert all(row["frozen"] > 10_000 for row in rows)


def test_a_daemon_that_a_new_python_does_not_find_is_not_set_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_here_alone.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_found_anew(WORKER_DAEMON)
    assert not is_found_anew("found_here_alone")
    assert not is_found_anew("found_nowhere")
    local = SparkOptions(master="local[1]")
    assert settings(local, None, tmp_path)["spark.python.daemon.module"] == WORKER_DAEMON
    monkeypatch.setattr(session, "is_found_anew", lambda module: False)
    assert "spark.python.daemon.module" not in settings(local, None, tmp_path)


def test_a_module_of_that_name_in_the_working_folder_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark starts the daemon by `python -m`, which looks there first: workers would fold by other code."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    found = is_found_anew.__wrapped__
    assert found(WORKER_DAEMON)
    (tmp_path / "holdfast" / "pipeline").mkdir(parents=True)
    for name in ("__init__.py", "pipeline/__init__.py", "pipeline/worker_daemon.py"):
        (tmp_path / "holdfast" / name).write_text("")
    monkeypatch.chdir(tmp_path)
    assert not found(WORKER_DAEMON)


def test_an_archive_of_classes_belongs_to_local_masters_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = spark_jars()
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setattr("holdfast.pipeline.spark.session.spark_jars", lambda: jars)
    archive = archive_of(SparkOptions(master="local[2]"))
    assert archive is not None
    assert archive.path.parent == tmp_path / "spark"
    java_options = settings(SparkOptions(master="local[2]"), archive, tmp_path)[
        "spark.driver.extraJavaOptions"
    ]
    assert f"-XX:ArchiveClassesAtExit={archive.made_at}" in java_options
    assert archive_of(SparkOptions(master="yarn")) is None


def test_an_active_session_is_used_and_left_running(spark: SparkSession) -> None:
    from holdfast.pipeline.spark.session import open_session

    with open_session(SparkOptions(master="local[1]")) as session:
        assert session is spark
    assert spark.range(3).count() == 3


@pytest.mark.parametrize("error", [AssertionError(), ConnectionRefusedError(111, "refused")])
def test_a_session_whose_jvm_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """pyspark asserts that there is a JVM, and asks it: local landings ended with that for ever."""
    import pyspark.sql

    def asked(*_: object) -> None:
        raise error

    forgotten = list[bool]()
    monkeypatch.setattr(pyspark.sql.SparkSession, "getActiveSession", asked)
    monkeypatch.setattr(session, "_forget_gone", lambda: forgotten.append(True))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert session.active_session() is None
    assert forgotten == [True]
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "7")
    with pytest.raises(SparkError, match="Submit the program again"):
        session.active_session()


LOST = """
import logging, sys
from pathlib import Path
from pyspark import SparkContext
from holdfast.pipeline.landing.options import chosen_engine
from holdfast.pipeline.spark.session import SparkOptions, is_gone, open_session
logging.disable()
options = SparkOptions(master="local[1]", quick=True, log_dir=Path(sys.argv[1]))
with open_session(options) as lost:
    SparkContext._gateway.proc.kill()
    SparkContext._gateway.proc.wait()
    print(is_gone(lost), chosen_engine("auto", "/lake", None)[0])
    with open_session(options) as session:
        print(session.range(7).count(), is_gone(session))
"""


@pytest.mark.variant
@pytest.mark.spark
def test_work_continues_where_the_jvm_of_the_active_session_was_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOST, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout.split() == ["True", "local", "7", "False"], done.stderr


SCRIPT = """
import logging, sys
from pathlib import Path
from pyspark import SparkContext
from holdfast.errors import SparkError
from holdfast.pipeline.spark.session import SparkOptions, open_session
from holdfast.pipeline.spark.errors import explained
logging.disable()  # py4j's complaint about the connection to the killed JVM
options = SparkOptions(master="local[1]", quick=True, log_dir=Path(sys.argv[1]))
try:
    with open_session(options) as session:
        SparkContext._gateway.proc.kill()
        with explained("count"):
            session.range(7).count()
except SparkError as error:
    print("told" if "JVM is gone" in str(error) and str(error).endswith(f"log is {next(options.log_dir.iterdir())}") else error, flush=True)
with open_session(options) as session:
    print(session.range(7).count(), flush=True)
input()
"""  # noqa: E501


@pytest.mark.variant
@pytest.mark.spark
def test_a_session_says_nothing_ends_its_jvm_and_outlives_one_that_was_killed(tmp_path: Path) -> None:
    import psutil  # type: ignore[import-untyped]

    with subprocess.Popen(
        [sys.executable, "-P", "-c", SCRIPT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(2)]
            assert said == ["told\n", "7\n"], process.communicate(timeout=DEADLINE_S)
            assert process.stdin is not None
            _, alive = psutil.wait_procs(
                psutil.Process(process.pid).children(recursive=True), timeout=DEADLINE_S
            )
            assert alive == [], "no JVM is left while the process goes on"
            out, err = process.communicate("\n", timeout=DEADLINE_S)
            assert (out, err) == ("", "")
        finally:
            process.kill()
    assert list(tmp_path.glob("spark-*.log")), "what Spark said is in the log"


class SlowToEnd:
    """A session and its gateway whose JVM ends *after_s* after its input has."""

    def __init__(self, after_s: int) -> None:
        self.proc = subprocess.Popen(
            ["sh", "-c", f"read line; sleep {after_s}; exit 7"], stdin=subprocess.PIPE
        )

    def stop(self) -> None: ...

    def shutdown(self) -> None: ...


@pytest.mark.process
@pytest.mark.parametrize(("makes_archive", "after_s", "code"), [(True, 1, 7), (False, 60, -signal.SIGKILL)])
def test_a_jvm_that_writes_its_archive_is_given_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, makes_archive: bool, after_s: int, code: int
) -> None:
    monkeypatch.setattr(session, "STOP_DEADLINE_S", 0.1)
    path = tmp_path / "classes.jsa"
    slow: Any = SlowToEnd(after_s)
    session._stop(slow, slow, ClassArchive(path=path, made_at=path if makes_archive else None))
    assert slow.proc.returncode == code


# -- meanings of Spark's failures


class Java:
    def __init__(self, name: str, message: str | None, cause: Java | None = None) -> None:
        self._name, self._message, self._cause = name, message, cause

    def getClass(self) -> Java:
        return self

    def getName(self) -> str:
        return self._name

    def getMessage(self) -> str | None:
        return self._message

    def getCause(self) -> Java | None:
        return self._cause


def spark_failure(java: Java) -> Exception:
    error = Exception("<exception str() failed>")
    error.java_exception = java  # type: ignore[attr-defined]
    return error


def test_the_innermost_message_is_reported() -> None:
    error = spark_failure(
        Java(
            "a.SparkException",
            "Job aborted",
            Java("b.C", None, Java("c.IOException", "No space left on device")),
        )
    )
    assert str(failed(error, "t 0:5")) == "t 0:5: IOException: No space left on device"


def test_a_workers_traceback_is_cut_to_its_last_line() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "f.py", line 3, in f\n    x\nModuleNotFoundError: No'
        " module named 'shop'\n"
    )
    assert (
        str(failed(spark_failure(Java("PythonException", trace)), "t"))
        == "t: the Python of a worker has no module shop: install it there, or set spark.pyspark.python to"
        " one of this driver's version that has this package's dependencies"
    )


def test_a_package_that_a_workers_python_lacks_is_reported_with_a_remedy() -> None:
    importing = {"__name__": "holdfast.pipeline.logs.lake_log", "find": MissingExtras.find_spec}
    with pytest.raises(ModuleNotFoundError) as refused:
        exec("find('pyarrow')", importing)  # noqa: S102  the name of the caller counts
    trace = f"Traceback (most recent call last):\n  File x\nModuleNotFoundError: {refused.value}\n"
    told = str(failed(spark_failure(Java("PythonException", trace)), "t"))
    assert told.startswith("t: the Python of a worker has no module pyarrow: install it there, or set spark.")


@pytest.mark.parametrize("kind", [LakeError, LostRecordsError, UnreadableError, PipelineError])
def test_an_error_of_ours_in_a_task_is_the_same_error_here(kind: type[PipelineError]) -> None:
    trace = f"Traceback (most recent call last):\n  File x\nholdfast.errors.{kind.__name__}: no: more\n"
    told = failed(spark_failure(Java("PythonException", trace)), "t")
    assert (type(told), str(told)) == (kind, "no: more")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "File '/opt/lib/python3.8/runpy.py'\n  AttributeError: no 'f'",
            "it is 3.8 (AttributeError: no 'f')",
        ),
        ("File '/opt/lib/python3.6/x.py'\n  ModuleNotFoundError: No module named 'a.b'", "it is 3.6"),
        ("SyntaxError: invalid syntax", "before it took work (SyntaxError: invalid syntax)"),
    ],
)
def test_a_python_that_is_too_old_for_spark_is_reported_with_a_remedy(said: str, told: str) -> None:
    ended = "EOFException occurred while reading the port number from pyspark.daemon's stdout."
    error = RuntimeError(
        f"Error from python worker:\n  {said}\nPYTHONPATH was:\n  x\nSparkException: {ended}"
    )
    message = str(failed(error, "topic t"))
    assert told in message
    assert "set spark.pyspark.python to one of this driver's version" in message
    assert "EOFException" not in message


def test_a_worker_of_another_python_is_reported_with_a_remedy() -> None:
    said = (
        "Python in worker has different version: 3.9 than that in driver: 3.11, PySpark cannot run with"
        " different minor versions."
    )
    trace = (
        "Traceback (most recent call last):\n  File x\npyspark.errors.PySparkRuntimeError:"
        f" [PYTHON_VERSION_MISMATCH] {said}\n"
    )
    told = str(failed(spark_failure(Java("PythonException", trace)), "t"))
    assert told.startswith(f"t: {said}: set spark.pyspark.python to one of this driver's version")


@pytest.mark.parametrize(
    ("failure", "died"),
    [
        (
            "ExecutorLostFailure (executor 3 exited) Reason: exited with code 137",
            "its executor ended (exited with code 137)",
        ),
        (
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
            "its Python was killed, or crashed",
        ),
    ],
)
def test_a_task_that_dies_each_time_is_reported_by_its_end_without_a_trace(failure: str, died: str) -> None:
    message = (
        "Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage 0.0 (TID 3) (h"
        f" executor 3): {failure}\n\tat x.y\nDriver stacktrace:"
    )
    told = str(
        failed(spark_failure(Java("a.SparkException", message, Java("java.io.EOFException", None))), "t")
    )
    assert told.startswith(
        f"t: a task was given up after 4 attempts, the last one on h executor 3: {died}. Were"
    )
    assert "stacktrace" not in told


def test_results_that_do_not_fit_are_reported_with_a_remedy() -> None:
    error = spark_failure(
        Java(
            "org.apache.spark.SparkException",
            "Total size ... is bigger than spark.driver.maxResultSize (1024.0 MiB)",
        )
    )
    assert "write it with --out" in str(failed(error, "t"))


class Gone(Java):
    """An exception of Java whose JVM has ended: py4j cannot ask for any of it."""

    def getClass(self) -> Java:
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_call_in_whose_middle_the_jvm_ended_is_reported_as_that() -> None:
    from py4j.protocol import Py4JError

    gone, answered = (
        Py4JError("An error occurred while calling o55.sc"),
        Py4JError("An error occurred while calling o1.x. Trace:\nE"),
    )
    assert "t: Spark's JVM is gone" in str(failed(gone, "t"))
    assert "gone" not in str(failed(answered, "t"))


def test_an_error_whose_jvm_is_gone_is_reported_as_that() -> None:
    for java in (Gone("a.B", None), Java("a.SparkException", "Job aborted", Gone("a.B", None))):
        assert "t: Spark's JVM is gone" in str(failed(spark_failure(java), "t"))


def test_a_context_that_spark_has_stopped_is_reported_with_a_remedy() -> None:
    stopped = (
        "Cannot call methods on a stopped SparkContext.\nThis stopped SparkContext was created at:\n\nx.y"
    )
    error = spark_failure(Java("java.lang.IllegalStateException", stopped))
    assert (
        str(failed(error, "no Spark session"))
        == "no Spark session: Spark has given up, as it does without a master or executors (see --master): "
        "Cannot call methods on a stopped SparkContext."
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "spark-1.log"
    path.write_text(
        "0 ERROR Utils: lost a block\n1 WARN Utils: odd\n2 ERROR Backend: removed: Master removed our"
        " application: FAILED\n\tat x.y\n3 WARN more\n"
    )
    return path


def test_a_session_that_does_not_start_quotes_sparks_log_and_names_it(log: Path) -> None:
    told = session_failed(
        ConnectionRefusedError(), log
    )  # all that is left of a JVM that ended while it started
    assert str(told).startswith("no Spark session: Spark's JVM is gone")
    assert '"2 ERROR Backend: removed: Master removed our application: FAILED"' in str(told)
    assert str(told).endswith(f"Spark's log is {log}")
    assert "no Spark session: all is full" in str(session_failed(RuntimeError("all is full"), log))


def test_errors_of_spark_alone_name_its_log(log: Path, tmp_path: Path) -> None:
    spark, lake, bug = SparkError("no memory"), LakeError("no table"), KeyError("k")
    assert str(with_log(spark, log)).endswith(f"Spark's log is {log}")
    assert with_log(lake, log) is lake
    assert with_log(bug, log) is bug
    missing = tmp_path / "missing.log"
    assert str(with_log(spark, missing)) == f"no memory; Spark's log is {missing}"


def test_the_cause_of_a_jvms_end_before_it_could_log_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "spark-1.log"
    log.write_text(
        'Exception in thread "main" org.apache.spark.SparkException: Could not parse Master URL: x\n\tat'
        " y.z\n"
    )
    assert "Could not parse Master URL: x" in in_log(log)
    log.write_text("")
    assert in_log(log) == f"; Spark's log is {log}"
