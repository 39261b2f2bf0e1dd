"""Test suites of Kafka clients in Go, as their modules have them, run against the embedded broker.

A module comes from Go's proxy, is checked against the hash in this file, and is built in a folder of its own.
Suites with a hard-coded broker address get another one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.patience import SCENARIO_S

BUILD_S = 900
"""A compiler on a machine under load takes minutes."""
_RESULT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


class GoMissingError(Exception):
    """There is no `go` on PATH."""


class GoModule(NamedTuple):
    """A module: *checksum* is Go's own, of its whole content; *known* is the address that its tests know."""

    path: str
    version: str
    checksum: str
    package: str = "."
    known: tuple[str, ...] = ()


FRANZ_GO = GoModule(
    "github.com/twmb/franz-go", "v1.22.3", "h1:RHe35s34pKefMLyL+ZYJ6mQVtfFZz4zHDHVkTyACur0=", "./pkg/kgo"
)
KAFKA_GO = GoModule(
    "github.com/segmentio/kafka-go",
    "v0.4.51",
    "h1:JgDPPG75tC1rWIS2Me6MwcvXJ6f49UQ4HjAOef71Hno=",
    known=('"localhost:9092"', '"localhost"'),
)


SARAMA = GoModule("github.com/IBM/sarama", "v1.46.3", "h1:njRsX6jNlnR+ClJ8XmkO+CM4unbrNr/2vB5KK6UA+IE=")
KADM = GoModule(
    "github.com/twmb/franz-go/pkg/kadm", "v1.20.0", "h1:Gx9q6UwA1QP0SXHutlT3iNpGC3dfm5DY5XDdUYrC9M8="
)


class Outcome(NamedTuple):
    """Names of a suite's tests and subtests, by result."""

    passed: frozenset[str]
    failed: frozenset[str]
    skipped: frozenset[str]


def outcome(output: str) -> Outcome:
    """Return the result of each test in *output*, which is that of ``go test -v``.

    >>> outcome("--- PASS: TestA (0.1s)\\n    --- FAIL: TestB/of_two (0s)\\n--- SKIP: TestC (0s)")
    Outcome(passed=frozenset({'TestA'}), failed=frozenset({'TestB/of_two'}), skipped=frozenset({'TestC'}))
    """
    found: dict[str, set[str]] = {"PASS": set(), "FAIL": set(), "SKIP": set()}
    for result, name in _RESULT.findall(output):
        found[result].add(name)
    return Outcome(*(frozenset(found[each]) for each in ("PASS", "FAIL", "SKIP")))


def go() -> str:
    """Return the path of Go; GoMissingError has the remedy if there is none."""
    if (found := shutil.which("go")) is not None:
        return found
    raise GoMissingError("no go on PATH: install Go 1.26 or newer from https://go.dev/dl")


def run(command: list[str], folder: Path, limit_s: float, **more: str) -> str:
    """Return a command's output; AssertionError with the end of it if the command fails."""
    environment = {**os.environ, "GOFLAGS": "-mod=mod", **more}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def fetched(module: GoModule, folder: Path) -> Path:
    """Return where Go keeps *module*, which must not be changed; AssertionError where it is another one."""
    asked = [go(), "mod", "download", "-json", f"{module.path}@{module.version}"]
    folder.mkdir(parents=True, exist_ok=True)
    told = json.loads(run(asked, folder, BUILD_S))
    assert told["Sum"] == module.checksum, f"{module.path} has another content: {told['Sum']}"
    return Path(told["Dir"])


def program_of(source: Path, modules: tuple[GoModule, ...], folder: Path) -> Path:
    """Return the program that *source* is, built in *folder* with *modules*."""
    for each in modules:
        fetched(each, folder)
    lines = [f"require {each.path} {each.version}" for each in modules]
    (folder / "go.mod").write_text("\n".join(["module program", "go 1.26", *lines, ""]))
    shutil.copyfile(source, folder / "main.go")
    run([go(), "mod", "tidy"], folder, BUILD_S)
    run([go(), "build", "-o", "program", "."], folder, BUILD_S)
    return folder / "program"


def sources(module: GoModule, folder: Path) -> Path:
    """Return a copy of *module* in *folder*, which may be changed."""
    there, copied = fetched(module, folder), folder / "module"
    shutil.copytree(there, copied, copy_function=shutil.copyfile)
    for each in (copied, *copied.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    return copied


def built(module: GoModule, folder: Path, broker: str) -> Path:
    """Return the program of the tests of *module*, with *broker* in the code instead of their own address."""
    copied = sources(module, folder)
    for each in copied.glob("*_test.go") if module.known else ():
        text = each.read_text()
        for address in module.known:
            text = text.replace(f"TCP({address})", f'TCP("{broker}")').replace(
                f"[]string{{{address}}}", f'[]string{{"{broker}"}}'
            )
            text = re.sub(rf"(\"tcp\", ){re.escape(address)}", rf'\1"{broker}"', text)
            text = re.sub(rf"(kafka = ){re.escape(address)}", rf'\1"{broker}"', text)
        if each.name != "address_test.go":
            each.write_text(text)
    if module.known:
        run([go(), "mod", "tidy"], copied, BUILD_S)
    program = folder / "suite.test"
    run([go(), "test", "-c", "-o", str(program), module.package], copied, BUILD_S)
    return program


def ran(program: Path, folder: Path, only: str, but: str = "^$", **more: str) -> tuple[Outcome, str]:
    """Run the tests whose names match *only* and not *but*; return their results and their output."""
    command = [
        str(program),
        "-test.v",
        f"-test.timeout={SCENARIO_S:.0f}s",
        f"-test.run={only}",
        f"-test.skip={but}",
    ]
    environment: Mapping[str, str] = {**os.environ, **more}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * SCENARIO_S,
        check=False,
    )
    return outcome(done.stdout), done.stdout[-8000:] + done.stderr[-2000:]
