"""Another application of the same name on the same broker: its workers are in the same group."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from holdfast.agents.faust.rebalancing.sharing import Tables

OTHER_SOURCES = "holdfast:other-sources:"
"""Begins a topic group that is none: where an assignment has it, members fold that changelog's table from
different topics.
"""
_VERSION = re.compile(r"\.v[0-9]+-changelog$")


def folded_differently(tables: Iterable[Tables]) -> set[str]:
    """Return the changelogs whose tables members fold from different topics.

    >>> sorted(folded_differently([{"c": ["w", "a"], "d": ["w", "a"]}, {"c": ["w", "b"], "e": ["w", "b"]}]))
    ['c']
    """
    sources: dict[str, set[tuple[str, ...]]] = {}
    for each in tables:
        for changelog, (_, *topics) in each.items():
            sources.setdefault(changelog, set()).add(tuple(sorted(topics)))
    return {changelog for changelog, found in sources.items() if len(found) > 1}


def marked(changelogs: Iterable[str]) -> dict[str, int]:
    """Return the entries of an assignment that mark *changelogs* as folded from different topics."""
    return {f"{OTHER_SOURCES}{each}": 1 for each in changelogs}


def namesakes(
    app: str,
    own: Tables,
    hosts: Mapping[str, Collection[str]],
    topic_groups: Collection[str],
) -> list[str]:
    """Return a line for each sign of another application named *app*: another worker in *hosts*, by URL, with
    changelogs but none of a table in *own*, and changelogs in *topic_groups* of which the leader says
    that members fold them from different topics.
    """
    cure = (
        f"two applications are named {app} on this broker, and their workers are one group: give each a name"
        " of its own (setting app, HOLDFAST_APP, or the table [holdfast] of holdfast.toml), or another broker"
    )
    found = [
        f"the workers of {app} fold {_table(app, each)} from different topics: {cure}; if the sources of this"
        " processor were changed, raise its version"
        for each in sorted(own)
        if f"{OTHER_SOURCES}{each}" in topic_groups
    ]
    mine = {_table(app, each) for each in own}
    for url, changelogs in sorted(hosts.items()):
        theirs = {_table(app, each) for each in changelogs}
        if theirs and mine and not theirs & mine:
            found.append(
                f"the worker at {url} has the tables {_listed(theirs)}, and this one has {_listed(mine)}:"
                f" {cure}"
            )
    return found


def _table(app: str, changelog: str) -> str:
    return _VERSION.sub("", changelog).removeprefix(f"{app}-")


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
