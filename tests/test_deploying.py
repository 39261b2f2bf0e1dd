"""The commands and settings in deploy/ are those of this program."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.clients.tables.web_tls import WorkerToken
from holdfast.config import Settings, load_settings
from tests.support.places import ROOT
from tests.test_operating_page import commands, options, unknown, unknown_options

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "holdfast"
SECRETS = {"HOLDFAST_WEB_TOKEN": "secret", "HOLDFAST_OUTBOX_DATABASE": "postgresql+psycopg://shop@db/shop"}
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def manifests() -> dict[str, Any]:
    text = (DEPLOY / "kubernetes" / "holdfast.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def pod() -> dict[str, Any]:
    found: dict[str, Any] = manifests()["StatefulSet"]["spec"]["template"]["spec"]
    return found


def understood(words: list[str]) -> None:
    """Fail unless *words*, after `holdfast`, name a command with options that it has."""
    page = f"    holdfast {shlex.join(words)}\n"
    ((bare, given),) = options(page)
    verb = next(iter(commands(page)))
    assert unknown(verb) is None, verb
    assert not unknown_options(
        [word for word in bare if not word.startswith("--") and "=" not in word], given
    )


def settings_of(environment: dict[str, str], text: str, folder: Path) -> Settings:
    file = folder / "holdfast.toml"
    file.write_text(text)
    known = {name: value for name, value in environment.items() if name != "HOLDFAST_CONFIG"}
    return load_settings(flags={}, env=known, file=file)


@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_the_manifests_settings_are_accepted(part: str, tmp_path: Path) -> None:
    (container,) = pod()[part]
    given = {each["name"]: each.get("value", "shop-0") for each in container["env"]}
    env = {name: value.replace("$(POD_IP)", "10.1.2.3") for name, value in given.items() if name != "POD_IP"}
    settings = settings_of(env | SECRETS, manifests()["ConfigMap"]["data"]["holdfast.toml"], tmp_path)
    assert settings.app == "shop"
    assert settings.kafka["bootstrap.servers"] == "kafka:9092"
    if part == "containers":
        assert settings.instance_id == "shop-0"
        assert WorkerToken(settings).headers(str(settings.web_url))


def test_the_manifests_commands_exist() -> None:
    for part in ("containers", "initContainers"):
        program, *words = pod()[part][0]["command"]
        assert program == "holdfast"
        understood(words)


def test_a_worker_may_take_as_long_as_it_needs_to_leave() -> None:
    needed = Settings().commit_timeout_s + Settings().rebalance_timeout_s
    assert pod()["terminationGracePeriodSeconds"] >= needed


def test_the_charts_values_are_those_of_the_manifests() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    settings = tomllib.loads(manifests()["ConfigMap"]["data"]["holdfast.toml"])
    assert values["settings"].items() <= settings["holdfast"].items()
    assert values["kafka"] == settings["kafka"]
    assert manifests()["StatefulSet"]["spec"]["replicas"] == values["workers"]
    assert (
        manifests()["PodDisruptionBudget"]["spec"]["maxUnavailable"]
        == values["disruptions"]["maxUnavailable"]
    )


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_units_settings_and_command_exist(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text().replace("%i", "1").replace("%H", "host")
    environment = dict(
        each.split("=", 1)
        for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE)
        for each in shlex.split(line)
    )
    settings_of(environment | SECRETS, '[holdfast]\napp = "shop"\n', tmp_path)
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *words = shlex.split(command)
    assert Path(program).name == "holdfast"
    understood(words)
