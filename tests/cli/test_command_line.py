"""The `holdfast` command as a person meets it: help, exit codes, one line per error, the same options
everywhere.
"""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

import holdfast.cli.__main__ as command_line
import holdfast.cli.worker.__main__ as worker_entry
from holdfast.cli import entry
from holdfast.cli.__main__ import COMMANDS, GLOBAL_OPTIONS, hoist, main
from holdfast.errors import BrokerError
from tests.support import fork_server
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.process


def holdfast(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `holdfast` in *folder*, without the settings that this process has."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "KAFKA_"))
    }
    command = [*fork_server.INTERPRETER, fork_server.COMMAND, *arguments]
    return fork_server.run(command, env=clean | env, cwd=folder, timeout=DEADLINE_S)


def test_help_lists_every_command(tmp_path: Path) -> None:
    done = holdfast("--help", folder=tmp_path)
    assert done.returncode == 0
    unwrapped = " ".join(done.stdout.split())
    for name, (_, text) in COMMANDS.items():
        assert f"{name} {text}" in unwrapped


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_itself_what_the_list_says_of_it(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        main([name, "--help"])
    assert not done.value.code
    usage, said = capsys.readouterr().out.split("\n\n")[:2]
    assert usage.startswith("Usage: ")
    if " COMMAND " in usage and name != "demo":
        assert " ".join(said.split()) == COMMANDS[name].help
    else:  # the demo, and what has no verbs, say more
        assert said.strip()


def test_the_commands_are_listed_in_the_order_of_their_names() -> None:
    assert [*COMMANDS] == sorted(COMMANDS)


def test_no_arguments_show_the_help_and_fail_as_usage(tmp_path: Path) -> None:
    done = holdfast(folder=tmp_path)
    assert done.returncode == 2
    assert "Commands:" in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["config"]])
def test_what_needs_no_cluster_imports_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code = (
        f"import sys\nfrom holdfast.cli.__main__ import main\ntry:\n    main({arguments!r})\nexcept"
        " SystemExit as done:\n    assert not done.code, done.code\nheavy = {'aiohttp', 'aiokafka',"
        " 'confluent_kafka', 'faust', 'pandas', 'pyarrow', 'pyspark', 'rich', 'rocksdict', 'sqlalchemy',"
        " 'asyncio'}\nprint('IMPORTED', sorted(heavy & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout.endswith("IMPORTED []\n"), done.stdout + done.stderr


def test_the_version_is_the_packages(tmp_path: Path) -> None:
    from importlib.metadata import version

    assert holdfast("--version", folder=tmp_path).stdout == f"holdfast {version('holdfast')}\n"


@pytest.mark.parametrize(
    ("arguments", "env", "toml", "parts"),
    [
        (
            ["config"],
            {"HOLDFAST_WEB_PROT": "1"},
            "",
            ["environment HOLDFAST_WEB_PROT", "did you mean HOLDFAST_WEB_PORT"],
        ),
        (["config"], {}, "[holdfast]\nweb_prot = 1", ["holdfast.toml", "web_prot"]),
        (["config", "--set", "web_prot=1"], {}, "", ["flag web_prot"]),
        (["config", "--set", "nonsense"], {}, "", ["write NAME=VALUE"]),
        (["config", "--config", "absent.toml"], {}, "", ["absent.toml", "No such file"]),
        (["config"], {"HOLDFAST_CONFIG": "absent.toml"}, "", ["absent.toml", "No such file"]),
        (["config", "--set", "web_bind=0.0.0.0"], {}, "", ["web_bind (flag)", "set web_token"]),
        (["config", "--set", "kafka.group.id=x"], {}, "", ["group.id", "`app`"]),
        (
            ["config", "--check", "--set", "kafka.debug=everything"],
            {},
            "",
            ["refused by librdkafka", "everything"],
        ),
        (
            [
                "config",
                "--check",
                "--set",
                "kafka.security.protocol=SSL",
                "--set",
                "kafka.ssl.ca.location=absent.pem",
            ],
            {},
            "",
            ["ssl.ca.location"],
        ),
        (["topics", "list", "-A", "absent_module"], {}, "", ["-A absent_module", "no module"]),
    ],
)
def test_a_configuration_error_is_one_line_on_stderr_and_exit_code_2(
    arguments: list[str], env: dict[str, str], toml: str, parts: list[str], tmp_path: Path
) -> None:
    if toml:
        (tmp_path / "holdfast.toml").write_text(toml)
    done = holdfast(*arguments, folder=tmp_path, **env)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("%")]
    assert line.startswith("holdfast: ")
    for part in parts:
        assert part in line


def test_all_wrong_settings_are_on_stderr_at_once_a_line_each(tmp_path: Path) -> None:
    done = holdfast("config", "--set", "web_port=0", folder=tmp_path, HOLDFAST_STANDBYS="many\nof them")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "holdfast: 2 settings are wrong:",
        "- environment HOLDFAST_STANDBYS: standbys cannot be 'many\\nof them': Expected `int`, got `str`",
        "- web_port (flag) is 0; the range is 1 to 65535",
    ]


@pytest.mark.parametrize(
    "arguments", [["confg"], ["config", "--nonsense"], ["config", "--output", "yaml"], ["topics", "creat"]]
)
def test_a_usage_error_is_exit_code_2(arguments: list[str], tmp_path: Path) -> None:
    done = holdfast(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert "Error" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failed_operation_is_exit_code_1_and_says_what_to_check(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "processors = __import__('holdfast.agents.services.rationalizer', fromlist=['x']).processors\n"
    )
    done = holdfast(
        "topics",
        "list",
        "-A",
        "shop",
        "--bootstrap",
        "127.0.0.1:1",
        "--set",
        "request_timeout_s=10",
        folder=tmp_path,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    for part in (
        "no Kafka broker at 127.0.0.1:1",
        "Connection refused",
        "bootstrap.servers",
        "holdfast dev up",
    ):
        assert part in line


def test_a_trace_is_shown_only_with_v(tmp_path: Path) -> None:
    plain = holdfast("config", "--set", "web_port=0", folder=tmp_path)
    verbose = holdfast("config", "--set", "web_port=0", "-v", folder=tmp_path)
    assert "Traceback" not in plain.stderr
    assert "Traceback" in verbose.stderr
    assert verbose.stderr.splitlines()[-1] == plain.stderr.strip()
    assert plain.returncode == verbose.returncode == 2


def test_config_prints_value_and_origin_with_secrets_masked(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(
        "[holdfast]\nstandbys = 2\nweb_token = 'hunter2'\n[kafka]\nclient.id = 'me'"
    )
    done = holdfast("config", "--set", "web_port=7000", folder=tmp_path, HOLDFAST_APP="shop")
    assert done.returncode == 0
    assert "hunter2" not in done.stdout
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.stdout.splitlines()}
    assert next(iter(rows)) == "NAME"
    assert rows["web_port"] == ["7000", "flag"]
    assert rows["app"] == ["shop", "environment HOLDFAST_APP"]
    assert rows["standbys"] == ["2", "file holdfast.toml"] or rows["standbys"][1].endswith("holdfast.toml")
    assert rows["web_token"][0] == "********"
    assert rows["kafka.client.id"][0] == "me"
    assert rows["instance_id"] == ["-", "default"]


def test_json_is_stable_and_whole(tmp_path: Path) -> None:
    done = holdfast("--output", "json", "config", folder=tmp_path)
    rows = json.loads(done.stdout)
    assert [*rows[0]] == ["name", "value", "origin", "doc"]
    by_name = {row["name"]: row["value"] for row in rows}
    assert (by_name["web_port"], by_name["compat_view"], by_name["instance_id"]) == (6066, False, None)
    assert holdfast("config", "--output", "json", folder=tmp_path).stdout == done.stdout, (
        "options may stand behind the command too"
    )


def test_config_check_lets_every_client_read_the_properties(tmp_path: Path) -> None:
    done = holdfast("config", "--check", "--set", "kafka.compression.type=zstd", folder=tmp_path)
    assert (done.returncode, done.stderr) == (
        0,
        "settings and Kafka properties are accepted by every client\n",
    )


def test_a_reader_that_leaves_early_is_not_a_bug_of_ours(tmp_path: Path) -> None:
    command = f"{sys.executable} -P -m holdfast.cli config | true"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert "Traceback" not in done.stderr


def test_a_missing_extra_is_named_with_its_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> object:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql")

    monkeypatch.setattr(command_line, "import_module", absent)
    with pytest.raises(SystemExit) as done:
        main(["topics"])
    assert done.value.code == 2
    assert (
        capsys.readouterr().err
        == "holdfast: this command needs pyspark.sql, which is not installed: pip install 'holdfast[spark]'\n"
    )


def test_a_module_of_our_own_that_is_missing_is_a_bug_and_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ModuleNotFoundError("No module named 'holdfast.nonsense'", name="holdfast.nonsense")

    monkeypatch.setattr(command_line, "import_module", absent)
    with pytest.raises(ModuleNotFoundError):
        main(["topics"])


def test_a_message_of_several_lines_becomes_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(name: str) -> object:
        raise BrokerError("first\n   second")

    monkeypatch.setattr(command_line, "import_module", fails)
    with pytest.raises(SystemExit) as done:
        main(["topics"])
    assert (done.value.code, capsys.readouterr().err) == (1, "holdfast: first second\n")


@pytest.mark.parametrize("program", [entry.main, worker_entry.main])
def test_an_interruption_while_a_program_imports_is_its_exit_code_and_no_traceback(
    program: Callable[[], NoReturn], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("builtins.__import__", interrupted)
        with pytest.raises(SystemExit) as done:
            program()
    assert done.value.code == 130


@pytest.mark.parametrize("option", GLOBAL_OPTIONS)
def test_a_global_option_without_its_value_is_left_for_the_parser_to_refuse(option: str) -> None:
    assert hoist(["config", option]) == [option, "config"]


def test_the_examples_in_the_entry_module_hold() -> None:
    tried = doctest.testmod(command_line)
    assert (tried.failed, tried.attempted) == (0, 2)
