"""Decides what a principal may do, as Kafka's StandardAuthorizer does
(org.apache.kafka.metadata.authorizer).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from holdfast.embedded.security.acl_rules import (
    ANYTHING,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    AclRule,
)

_Op = AclOperation
_Key: TypeAlias = "tuple[str | None, str | None, str | None]"
_Shape: TypeAlias = "tuple[bool, bool, bool]"
_Kind: TypeAlias = "tuple[AclResource, AclPattern, AclOperation, AclPermission]"
_IMPLIES: Mapping[AclOperation, frozenset[AclOperation]] = {
    _Op.DESCRIBE: frozenset({_Op.DESCRIBE, _Op.READ, _Op.WRITE, _Op.DELETE, _Op.ALTER}),
    _Op.DESCRIBE_CONFIGS: frozenset({_Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS}),
}
"""Operations that allow another one, if a rule allows them; a denial denies what it names only."""
OPERATIONS: Mapping[AclResource, tuple[AclOperation, ...]] = {
    AclResource.TOPIC: (
        _Op.READ,
        _Op.WRITE,
        _Op.CREATE,
        _Op.DESCRIBE,
        _Op.DELETE,
        _Op.ALTER,
        _Op.DESCRIBE_CONFIGS,
        _Op.ALTER_CONFIGS,
    ),
    AclResource.GROUP: (_Op.READ, _Op.DESCRIBE, _Op.DELETE, _Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS),
    AclResource.CLUSTER: (
        _Op.CREATE,
        _Op.CLUSTER_ACTION,
        _Op.DESCRIBE_CONFIGS,
        _Op.ALTER_CONFIGS,
        _Op.IDEMPOTENT_WRITE,
        _Op.ALTER,
        _Op.DESCRIBE,
    ),
}
"""The operations on a resource, for clients that ask for their rights (AclEntry.supportedOperations)."""
LIMIT_RULES = 10_000
"""That clients may make; what the broker begins with counts too."""
LIMIT_REMEMBERED, LIMIT_NAMES = 10_000, 1_000
"""Decisions that are kept until a rule changes, where the names of principal and resource are no longer."""


class EmbeddedAuthorizer:
    """The rules in force. *super_users* are principals (``User:root``) who may do everything; without any
    rule about a resource, others may touch it only where *allow_if_no_rule*.
    """

    def __init__(
        self,
        rules: Iterable[AclRule] = (),
        super_users: Iterable[str] = (),
        *,
        allow_if_no_rule: bool = False,
    ) -> None:
        self._rules: dict[AclRule, None] = {}
        self._named: dict[tuple[AclResource, AclPattern, str], dict[AclRule, None]] = {}
        self._prefixes: Counter[tuple[AclResource, int]] = Counter()
        """The number of rules of prefixes, by length."""
        self._super_users, self._default = frozenset(super_users), allow_if_no_rule
        self._decided: dict[tuple[str, str, AclOperation, AclResource, str], bool] = {}
        for each in rules:
            self.add(each)

    def has_room(self, rule: AclRule) -> bool:
        """Return whether *rule* is there, or may be made by a client."""
        return rule in self._rules or len(self._rules) < LIMIT_RULES

    def kept_bytes(self) -> int:
        """Return about how many bytes the rules take."""
        return sum(len(each.name) + len(each.principal) + len(each.host) for each in self._rules)

    def add(self, rule: AclRule) -> None:
        if rule in self._rules:
            return
        self._rules[rule] = None
        self._named.setdefault((rule.resource, rule.pattern, rule.name), {})[rule] = None
        if rule.pattern is AclPattern.PREFIXED:
            self._prefixes[rule.resource, len(rule.name)] += 1
        self._decided.clear()

    def remove(self, rule: AclRule) -> None:
        if rule not in self._rules:
            return
        del self._rules[rule]
        named = self._named[rule.resource, rule.pattern, rule.name]
        del named[rule]
        if not named:
            del self._named[rule.resource, rule.pattern, rule.name]
        if rule.pattern is AclPattern.PREFIXED:
            self._prefixes[rule.resource, len(rule.name)] -= 1
            self._prefixes += Counter()  # without those that are 0
        self._decided.clear()

    def _about(self, resource: AclResource, name: str) -> list[AclRule]:
        """Return the rules that cover a resource, without a look at those that do not."""
        literal = [(resource, AclPattern.LITERAL, each) for each in {name, ANYTHING}]
        prefixed = [
            (resource, AclPattern.PREFIXED, name[:size])
            for kind, size in self._prefixes
            if kind is resource and size <= len(name)
        ]
        return [rule for key in (*literal, *prefixed) for rule in self._named.get(key, ())]

    def found(self, wanted: AclFilter) -> Iterator[AclRule]:
        """Yield the rules that *wanted* finds."""
        return (each for each in tuple(self._rules) if wanted.finds(each))

    def taken(self, several: Iterable[AclFilter]) -> Iterator[list[AclRule]]:
        """Remove the rules that each filter finds of those that the filters before it have left, and yield
        them. It looks at all rules once, not once for each filter.
        """
        several = list(several)
        index = _RuleIndex(self._rules, {_shape(each) for each in several})
        for wanted in several:
            found = list(index.found(wanted))
            for each in found:
                index.remove(each)
                self.remove(each)
            yield found

    def may(
        self, principal: str, host: str, operation: AclOperation, resource: AclResource, name: str
    ) -> bool:
        """Return whether *principal* at *host* may do *operation* to the resource *name*."""
        asked = (principal, host, operation, resource, name)
        if len(name) + len(principal) > LIMIT_NAMES:
            return self._decide(*asked)
        if (decided := self._decided.get(asked)) is None:
            if len(self._decided) >= LIMIT_REMEMBERED:
                self._decided.clear()
            decided = self._decided[asked] = self._decide(*asked)
        return decided

    def _decide(
        self, principal: str, host: str, operation: AclOperation, resource: AclResource, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        about = self._about(resource, name)
        if not about:
            return self._default
        said = {
            each.permission for each in about if each.concerns(principal, host) and _is_about(each, operation)
        }
        return AclPermission.DENY not in said and AclPermission.ALLOW in said

    def may_somewhere(
        self, principal: str, host: str, operation: AclOperation, resource: AclResource
    ) -> bool:
        """Return whether there can be a resource of that kind to which *principal* may do *operation*: one
        that a rule allows, and that no wider rule denies (Authorizer.authorizeByResourceType).
        """
        if self.may(principal, host, operation, resource, "hardcode"):
            return True
        mine = [
            each
            for each in self._rules
            if each.resource is resource
            and each.concerns(principal, host)
            and each.operation in (operation, AclOperation.ALL)
        ]
        denied = [each for each in mine if each.permission is AclPermission.DENY]
        if any(each.pattern is AclPattern.LITERAL and each.name == ANYTHING for each in denied):
            return False
        allowed = [each for each in mine if each.permission is AclPermission.ALLOW]
        return any(not any(_hides(denial, each) for denial in denied) for each in allowed)

    def operations(self, principal: str, host: str, resource: AclResource, name: str) -> int:
        """Return the operations that *principal* may do on a resource, as the protocol's bits."""
        return sum(
            1 << each for each in OPERATIONS[resource] if self.may(principal, host, each, resource, name)
        )


class _RuleIndex:
    """Rules by what filters of *shapes* name (name, principal and host, each or not), and by all that
    has few values. So a filter costs no more than what it finds, and those few.
    """

    def __init__(self, rules: Iterable[AclRule], shapes: set[_Shape]) -> None:
        self._shapes = shapes
        self._rules: dict[_Key, dict[_Kind, dict[AclRule, None]]] = {}
        self._prefixes: set[int] = set()
        """The lengths of prefixes."""
        for each in rules:
            if each.pattern is AclPattern.PREFIXED:
                self._prefixes.add(len(each.name))
            for key in self._keys(each):
                self._rules.setdefault(key, {}).setdefault(_kind(each), {})[each] = None

    def remove(self, rule: AclRule) -> None:
        kind = _kind(rule)
        for key in self._keys(rule):
            alike = self._rules[key][kind]
            del alike[rule]
            if not alike:
                del self._rules[key][kind]

    def found(self, wanted: AclFilter) -> Iterator[AclRule]:
        for name in self._names(wanted):
            for alike in self._rules.get((name, wanted.principal, wanted.host), {}).values():
                if wanted.finds(next(iter(alike))):  # the others differ only where *wanted* says nothing
                    yield from alike

    def _keys(self, rule: AclRule) -> Iterator[_Key]:
        for name, principal, host in self._shapes:
            yield (
                rule.name if name else None,
                rule.principal if principal else None,
                rule.host if host else None,
            )

    def _names(self, wanted: AclFilter) -> set[str | None]:
        name = wanted.name
        if name is None or wanted.pattern is not AclPattern.MATCH:
            return {name}
        return {name, ANYTHING, *(name[:size] for size in self._prefixes if size <= len(name))}


def _shape(wanted: AclFilter) -> _Shape:
    """Return which of name, principal and host a filter says."""
    return wanted.name is not None, wanted.principal is not None, wanted.host is not None


def _kind(rule: AclRule) -> _Kind:
    return rule.resource, rule.pattern, rule.operation, rule.permission


def _is_about(rule: AclRule, operation: AclOperation) -> bool:
    if rule.operation in (AclOperation.ALL, operation):
        return True
    return rule.permission is AclPermission.ALLOW and rule.operation in _IMPLIES.get(operation, ())


def _hides(denial: AclRule, allowed: AclRule) -> bool:
    """Return whether *denial* leaves nothing of what another rule allows."""
    if (allowed.pattern, allowed.name) == (AclPattern.LITERAL, ANYTHING):
        return False
    if denial.pattern is AclPattern.PREFIXED:
        return allowed.name.startswith(denial.name)
    return allowed.pattern is AclPattern.LITERAL and denial.name == allowed.name
