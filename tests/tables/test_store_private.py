"""A store shows nothing to other accounts of the machine, whatever the umask, and also when it is an older
one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.agents.app import make_data_dir
from holdfast.errors import ConfigError, StoreError
from holdfast.tables.global_store import GlobalStore
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


def test_a_data_folder_that_is_a_file_is_reported_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("")
    for folder in (file, file / "below"):
        with pytest.raises(ConfigError, match="data_dir") as caught:
            make_data_dir(folder)
        assert "\n" not in str(caught.value)
    make_data_dir(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


# -- what another account put there while the folder was open to it

BUDGET = Budget.of(1 << 20, 1 << 20)


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return a function that makes a path another account's."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 4242, 4242, follow_symlinks=False)
        else:  # who may not give anything away becomes another itself
            monkeypatch.setattr(os, "geteuid", lambda: path.lstat().st_uid + 1)

    return give


def test_a_store_writes_through_no_link(tmp_path: Path) -> None:
    path, victim = tmp_path / "totals" / "0", tmp_path / "victim"
    PartitionStore(path, STAMP, BUDGET).close()
    victim.write_text("precious")
    victim.chmod(0o644)
    (path / "CURRENT").unlink()
    (path / "CURRENT").symlink_to(victim)
    with pytest.raises(StoreError, match="CURRENT is a link, which no store has"):
        PartitionStore(path, STAMP, BUDGET)
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("precious", 0o644)


@pytest.mark.parametrize("placed", ["table", "partition"])
def test_a_folder_that_another_account_linked_elsewhere_is_refused(
    placed: str, tmp_path: Path, give_away: Callable[[Path], None]
) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "data" / "totals" / "0"
    (elsewhere / "0").mkdir(parents=True)
    elsewhere.chmod(0o755)
    path.parent.parent.mkdir()
    if placed == "partition":
        path.parent.mkdir()
    link = path.parent if placed == "table" else path
    link.symlink_to(elsewhere)
    give_away(link)
    with pytest.raises(StoreError, match="belongs to another account"):
        PartitionStore(path, STAMP, BUDGET)
    with pytest.raises(StoreError, match="belongs to another account"):
        GlobalStore(link / "rates", BUDGET)
    assert elsewhere.stat().st_mode & 0o777 == 0o755
    assert not [each for each in elsewhere.rglob("*") if each.is_file()]


def test_a_link_of_the_operator_leads_where_it_says(tmp_path: Path) -> None:
    other_disk, path = tmp_path / "disk", tmp_path / "data" / "totals" / "0"
    other_disk.mkdir()
    path.parent.parent.mkdir()
    path.parent.symlink_to(other_disk)
    PartitionStore(path, STAMP, BUDGET).close()
    PartitionStore(path, STAMP, BUDGET).close()
    assert (other_disk / "0" / "CURRENT").exists()


def test_a_data_folder_that_others_can_replace_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for mode, told in ((0o755, 0), (0o1777, 0), (0o777, 1)):
        (tmp_path / "open").mkdir(exist_ok=True)
        (tmp_path / "open").chmod(mode)
        make_data_dir(tmp_path / "open" / "data")
        assert sum("sticky bit" in each.getMessage() for each in caplog.records) == told
