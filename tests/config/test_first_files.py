"""Files and addresses as newcomers write them: each is read, or refused with what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import load_settings
from holdfast.errors import ConfigError


def load(folder: Path, text: bytes) -> Path:
    file = folder / "holdfast.toml"
    file.write_bytes(text)
    return load_settings(flags={}, env={}, file=file).data_dir


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    assert load(tmp_path, b"\xef\xbb\xbf[holdfast]\ndata_dir = 'd'\n") == Path("d")


@pytest.mark.parametrize("path", [b"C:\\Users\\ada", b"D:\\xyz", b"D:\\data", b"C:\\temp\\new"])
def test_a_path_of_windows_in_double_quotes_names_the_cure(path: bytes, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a backslash begins an escape.* in single quotes"):
        load(tmp_path, b'[holdfast]\ndata_dir = "%s"\n' % path)
    assert str(load(tmp_path, b"[holdfast]\ndata_dir = '%s'\n" % path)) == path.decode()


def test_an_escape_elsewhere_is_not_blamed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, b'[holdfast]\napp = "a\\u0062"\nweb_port = \n')
    assert "backslash" not in str(caught.value)


def test_another_encoding_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not valid TOML: .*save it as UTF-8"):
        load(tmp_path, "[holdfast]\n".encode("utf-16"))


@pytest.mark.parametrize("scheme", ["http://", "https://", "HTTP://", "kafka://", "tcp://"])
def test_a_broker_written_as_a_url_names_the_cure(scheme: str) -> None:
    with pytest.raises(ConfigError, match=r"begins with .*: a broker is host:port, as kafka-1:9092"):
        load_settings(flags={"kafka.bootstrap.servers": f"{scheme}kafka-1:9092/"}, env={}, file=None)
