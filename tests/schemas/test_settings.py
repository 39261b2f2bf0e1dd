"""Settings of the schema registry: their sources, the refused values, and those that are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Settings
from holdfast.config import load_settings
from holdfast.errors import ConfigError


def test_they_come_from_a_section_and_the_password_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    file = tmp_path / "holdfast.toml"
    file.write_text('[schema_registry]\nurl = "https://registry:8081"\nusername = "shop"\ntimeout_s = 1.5\n')
    env = {"HOLDFAST_SCHEMA_REGISTRY_PASSWORD_FILE": str(tmp_path / "password")}
    settings = load_settings(flags={}, env=env, file=file)
    assert (settings.schema_registry_url, settings.schema_registry_timeout_s) == (
        "https://registry:8081",
        1.5,
    )
    assert (settings.schema_registry_username, settings.schema_registry_password) == ("shop", "hunter2")
    shown = {row.name: row.value for row in settings.describe()}
    assert shown["schema_registry_password"] == "********"
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"schema_registry_url": "registry:8081"}, "is no URL of a registry"),
        ({"schema_registry_url": "ftp://registry"}, "is no URL of a registry"),
        ({"schema_registry_url": "http://a:1,http://[b"}, "one is no URL"),
        ({"schema_registry_url": "http://ada:hunter2@registry"}, "one holds a user or a password"),
        ({"schema_registry_username": "ada"}, "belong together"),
        ({"schema_registry_username": "a:b", "schema_registry_password": "c"}, "has a colon"),
        ({"schema_registry_key": Path("key.pem")}, "needs schema_registry_cert"),
        ({"schema_registry_timeout_s": 0}, "the range is 0.1 to 60"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        Settings(**given)  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
