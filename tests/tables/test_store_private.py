"""What a store tells other accounts of the machine: nothing, whatever the umask, and also when it is an
older one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agents.app import make_data_dir
from holdfast.errors import ConfigError
from holdfast.tables.rocks import Budget
from holdfast.tables.store import PartitionStore, StoreStamp

STAMP = StoreStamp(app="shop", processor="totals", version=1, partition=0, cluster_id="c", changelog_id="t")


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.usefixtures("open_umask")
def test_a_store_is_for_its_account_alone(tmp_path: Path) -> None:
    path = tmp_path / "totals" / "0"
    PartitionStore(path, STAMP, Budget.of(1 << 20, 1 << 20)).close()
    assert [each.stat().st_mode & 0o777 for each in (path.parent, path)] == [0o700, 0o700]
    for each in (path.parent, path):
        each.chmod(0o755)
    for each in path.iterdir():
        each.chmod(0o644)
    store = PartitionStore(path, STAMP, Budget.of(1 << 20, 1 << 20))
    try:
        assert [each.stat().st_mode & 0o777 for each in (path.parent, path)] == [0o700, 0o700]
    finally:
        store.close()
    PartitionStore(path, STAMP, Budget.of(1 << 20, 1 << 20)).close()
    assert (path / "IDENTITY").stat().st_mode & 0o777 == 0o600


def test_a_data_folder_that_is_a_file_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("")
    for folder in (file, file / "below"):
        with pytest.raises(ConfigError, match="data_dir") as caught:
            make_data_dir(folder)
        assert "\n" not in str(caught.value)
    make_data_dir(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
