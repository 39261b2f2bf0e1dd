"""Code reaches Spark's workers as a zip of the modules imported here; shown on a cluster of two executors."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pyspark
import pytest

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import SparkError
from holdfast.jars import spark_jars
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.spark import shipping
from holdfast.pipeline.spark.shipping import pack
from tests.pipeline import accounts as account_folds
from tests.pipeline.accounts import Log, Record, accounts
from tests.pipeline.lakes import write_bronze
from tests.support.patience import DEADLINE_S, SCENARIO_S

pytestmark = pytest.mark.process


def names(content: bytes) -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(content)).namelist())


def test_the_zip_holds_every_room_and_runs_alone(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.zip"
    path.write_bytes(pack())
    found = names(path.read_bytes())
    for room, module in (
        ("core/engine/fold", "folding"),
        ("pipeline/folds", "folding"),
        ("tables", "store"),
        ("agents", "app"),
        ("outbox", "__init__"),
    ):
        assert f"holdfast/{room}/{module}.py" in found
    assert not [name for name in found if name.endswith(".pyc")]
    code = (
        f"import sys; sys.path.insert(0, {str(path)!r}); import holdfast.pipeline.folds.folding as f,"
        " holdfast; print(f.__file__, holdfast.__file__)"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", code],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
        cwd=tmp_path,
    )
    assert [each.startswith(str(path)) for each in ran.stdout.split()] == [
        True,
        True,
    ], "from the zip, not from the installed package"


def test_equal_code_gives_equal_bytes() -> None:
    assert pack(accounts()) == pack(accounts())


def test_the_processors_own_package_is_in_it() -> None:
    found = names(pack(accounts()))
    assert {"tests/__init__.py", "tests/pipeline/__init__.py", "tests/pipeline/accounts.py"} <= found


def test_a_package_is_looked_through_once_however_many_of_its_modules_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    package = shipping._package

    def counted(name: str) -> Iterator[shipping.Packed]:
        asked.append(name)
        return package(name)

    monkeypatch.setattr(shipping, "_package", counted)
    pack(accounts())
    assert asked.count("tests") == 1


class Event(msgspec.Struct, frozen=True):
    name: str


def fold(rows: Rows[Event], event: Event, at_ms: int) -> None:
    rows[event.name] = event


def test_decoders_that_come_with_libraries_need_no_shipping() -> None:
    decoder = msgspec.json.Decoder(Event).decode
    processor = Processor(name="p", source="s", decode=partial(decoder), fold=fold, row=Event)
    found = names(pack(processor))
    assert not [name for name in found if name.startswith(("msgspec", "json", "functools"))]
    assert "tests/pipeline/spark/test_shipping.py" in found, "where the fold is"


def test_a_processor_of_the_script_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_folds.fold, "__module__", "__main__")
    with pytest.raises(SparkError, match="defined in the script or notebook that runs"):
        pack(accounts())


RULES = """
def bonus(amount):
    return amount * 3
"""
APP = """
import msgspec, os
from cluster_rules import bonus
from holdfast.core.engine.declared.processor import Processor

WHERE = os.path.abspath(__file__)

class Row(msgspec.Struct, frozen=True):
    total: int = 0
    at_ms: int = 0

def decode(value):
    key, amount = value.decode().split(" ")
    return key, int(amount)

def fold(rows, event, at_ms):
    key, amount = event
    rows[key] = Row(rows.get(key, Row()).total + bonus(amount), at_ms)
    rows["where/" + WHERE] = Row()

processor = Processor(name="cluster", source="t", decode=decode, fold=fold, row=Row)
"""
DRIVER = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from cluster_app import processor
from holdfast.config import Settings
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.jars import spark_jars
from holdfast.pipeline.spark.session import SparkOptions, archive_of
# An archive of classes, which three JVMs can use and none can make for all, fits only their class path if it has the
# jars. These are uploaded all the same.
archive = archive_of(SparkOptions(master="local[2]"))
quick = " ".join(["-XX:TieredStopAtLevel=1", *(archive.flags() if archive.made_at is None else [])])
class_path = os.pathsep.join(map(str, spark_jars()))
conf = {
    "spark.driver.extraJavaOptions": quick + " -Djava.io.tmpdir=" + os.getcwd(),
    "spark.driver.extraClassPath": class_path,
    "spark.executor.extraJavaOptions": quick,
    "spark.executor.extraClassPath": class_path,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "100s",
}
spark = SparkOptions(master="local-cluster[2,1,1024]", quick=True, conf=conf)
got = replay(processor, Settings(), ReplayOptions(engine="spark", source="bronze", lake=sys.argv[2], spark=spark))
print(json.dumps({"applied": got.applied, "rows": got.table("rows", processor).select(["partition", "key", "row"]).to_pylist()}))
"""  # noqa: E501


@contextlib.contextmanager
def clean_work_folder() -> Iterator[None]:
    """Remove the files that a local-cluster master writes into the installed pyspark package."""
    work = Path(pyspark.__file__).parent / "work"
    before = set(work.iterdir()) if work.exists() else None
    try:
        yield
    finally:
        if before is None:
            shutil.rmtree(work, ignore_errors=True)
        else:
            for new in set(work.iterdir()) - before:
                shutil.rmtree(new, ignore_errors=True)


@pytest.mark.variant
@pytest.mark.spark
def test_two_executors_run_the_users_code_from_the_zip(tmp_path: Path) -> None:
    project, lake = tmp_path / "project", tmp_path / "lake"
    project.mkdir()
    (project / "cluster_app.py").write_text(APP)
    (project / "cluster_rules.py").write_text(RULES)
    log: Log = {
        p: [Record(at, 1_000 + at, None, b"k%d %d" % (at % 3, at)) for at in range(50)] for p in range(4)
    }
    write_bronze(lake, "t", log)
    with clean_work_folder():
        ran = subprocess.run(
            [sys.executable, "-P", "-c", DRIVER, str(project), str(lake)],
            capture_output=True,
            text=True,
            timeout=SCENARIO_S,
            check=False,
            cwd=tmp_path,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        told = json.loads(ran.stdout)
        rows = {(row["partition"], row["key"]): json.loads(row["row"]) for row in told["rows"]}
        places = {key.removeprefix("where/") for _, key in rows if key.startswith("where/")}
        uploaded = [{jar.name for jar in Path(place).parents[1].glob("*.jar")} for place in places]
    assert uploaded == [{jar.name for jar in spark_jars()}] * 2, "beside the zip, in each executor's folder"
    assert told["applied"] == {str(p): 49 for p in range(4)}
    for p in range(4):
        for k in range(3):
            assert rows[p, f"k{k}"] == {
                "total": 3 * sum(at for at in range(50) if at % 3 == k),
                "at_ms": 1_000 + max(range(k, 50, 3)),
            }
    assert len(places) == 2, "two executors, each with its own copy of the zip"
    assert all("/holdfast-" in place and place.endswith(".zip/cluster_app.py") for place in places)


def test_a_replay_in_this_process_needs_no_shipping(tmp_path: Path) -> None:
    write_bronze(tmp_path, "t", {0: [Record(0, 5, None, b"add a 1")]})
    options = ReplayOptions(engine="local", source="bronze", lake=str(tmp_path))
    assert replay(accounts("t"), Settings(), options).records == 1
