"""The text of the site's pages."""

from __future__ import annotations

import pytest

from release.pages import BESIDE, ROOT, page_text, with_examples

HOME = "https://git.example/x"


@pytest.mark.parametrize(
    ("uri", "link", "on_the_site"),
    [
        ("index.md", "[a](docs/outbox.md)", "[a](outbox.md)"),
        ("outbox.md", "[a](../README.md#install-it)", "[a](index.md#install-it)"),
        ("adr/0001-version-tables.md", "[a](../DESIGN.md)", "[a](../DESIGN.md)"),
        ("measurements.md", "[a](../docs/operating.md)", "[a](operating.md)"),
        ("outbox.md", "[a\nb](#tables)", "[a\nb](#tables)"),
        ("outbox.md", "[a](../tables/store.py)", f"[a]({HOME}/blob/HEAD/tables/store.py)"),
        ("outbox.md", "[a](https://kafka.apache.org)", "[a](https://kafka.apache.org)"),
    ],
)
def test_a_link_leads_to_its_page_or_to_the_repository(uri: str, link: str, on_the_site: str) -> None:
    assert page_text(link, uri, HOME) == on_the_site


def test_without_a_home_the_text_of_a_link_to_the_code_stays() -> None:
    assert page_text("see [`store.py`](../tables/store.py).", "outbox.md", "") == "see `store.py`."


def test_a_block_keeps_its_language_alone() -> None:
    assert page_text("```python runnable file=a.py\nx[0](1)\n```\n", "index.md", "").startswith("```python\n")


def test_examples_become_code() -> None:
    assert (
        with_examples("A.\n\n>>> f(\n...     [1]\n... )\n[1](2)\n\nB.")
        == "A.\n\n```pycon\n>>> f(\n...     [1]\n... )\n[1](2)\n```\n\nB."
    )


def test_no_page_has_a_drawing_whose_script_is_on_another_host() -> None:
    """The theme draws mermaid by a script of another host; without that the page shows the drawing's
    source.
    """
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / place for place in BESIDE)]
    assert [str(each) for each in pages if "```mermaid" in each.read_text("utf-8")] == []
    assert "mermaid" not in (ROOT / "mkdocs.yml").read_text("utf-8")
