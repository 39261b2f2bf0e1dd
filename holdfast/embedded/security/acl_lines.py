"""Rules as arguments of Kafka's own `kafka-acls`, a line each: what `holdfast acls ROLE --principal`
prints.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import TypeVar

from holdfast.embedded.security.acl_rules import (
    ANYTHING,
    CLUSTER_NAME,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    AclRule,
)
from holdfast.errors import DevBrokerError

_RESOURCES = {
    "--topic": AclResource.TOPIC,
    "--group": AclResource.GROUP,
    "--transactional-id": AclResource.TRANSACTIONAL_ID,
}
_PRINCIPALS = {"--allow-principal": AclPermission.ALLOW, "--deny-principal": AclPermission.DENY}
_HOSTS = {"--allow-host": AclPermission.ALLOW, "--deny-host": AclPermission.DENY}
_OPERATIONS = {each.name.replace("_", "").lower(): each for each in AclOperation if each >= AclOperation.ALL}
_PATTERNS = {each.name.lower(): each for each in (AclPattern.LITERAL, AclPattern.PREFIXED)}
T = TypeVar("T")
_EXAMPLE = "--add --allow-principal User:shop --operation Read --topic orders"


def rules_of_lines(lines: Iterable[str]) -> list[AclRule]:
    """Return the rules that *lines* add; empty ones, and those that begin with #, say nothing. DevBrokerError
    names what cannot be read.

    >>> [each.operation.name for each in rules_of_lines(["--add --allow-principal User:a --operation Read --topic t"])]
    ['READ']
    """  # noqa: E501
    found: list[AclRule] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                found += _rules(shlex.split(line))
            except ValueError as error:
                raise DevBrokerError(
                    f"line {number} of the access rules cannot be read: {error}; a line is as {_EXAMPLE}"
                ) from None
    return found


def _rules(words: list[str]) -> Iterator[AclRule]:
    """Yield the rules of a line: each operation of each resource, for each principal."""
    told = list(_pairs(words))
    resources = [*_resources(told)]
    principals = [(_PRINCIPALS[name], value) for name, value in told if name in _PRINCIPALS]
    hosts = {_HOSTS[name]: value for name, value in told if name in _HOSTS}
    named = [value for name, value in told if name == "--operation"]
    patterns = [value for name, value in told if name == "--resource-pattern-type"] or ["literal"]
    for what, each in (("principal", principals), ("resource", resources)):
        if not each:
            raise ValueError(f"it names no {what}")
    for permission, principal in principals:
        for resource, name in resources:
            for operation in named or ["All"]:
                yield AclRule(
                    resource,
                    name,
                    principal,
                    _known(_OPERATIONS, operation.replace("_", ""), "operation"),
                    _known(_PATTERNS, patterns[-1], "pattern"),
                    permission,
                    hosts.get(permission, ANYTHING),
                )


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each option with its value, "" for one that has none."""
    left = iter(words)
    for word in left:
        if word in ("--add", "--cluster", "--force"):
            yield word, ""
        elif word in (*_RESOURCES, *_PRINCIPALS, *_HOSTS, "--operation", "--resource-pattern-type"):
            value = next(left, "")
            if not value or value.startswith("--"):
                raise ValueError(f"{word} without a value")
            yield word, value
        else:
            raise ValueError(f"{word} is not known here")


def _resources(told: list[tuple[str, str]]) -> Iterator[tuple[AclResource, str]]:
    for name, value in told:
        if name == "--cluster":
            yield AclResource.CLUSTER, CLUSTER_NAME
        elif name in _RESOURCES:
            yield _RESOURCES[name], value


def _known(kinds: dict[str, T], name: str, what: str) -> T:
    found = kinds.get(name.lower())
    if found is None:
        raise ValueError(f"{name} is no {what}; there are {', '.join(kinds)}")
    return found
