"""Passwords of users as administrators set them: DescribeUserScramCredentials, AlterUserScramCredentials."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from holdfast.embedded.apis.call import NO_KEPT_ROOM, Call, Fields
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation
from holdfast.embedded.security.scram import (
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    NUMBERS,
    ScramCredential,
    credential_of_salted,
)


class _Wrong(NamedTuple):
    """Why a user's credential is not returned or changed."""

    code: KafkaCode
    text: str | None


_TWICE = _Wrong(KafkaCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")


def describe_user_scram_credentials(call: Call) -> Fields:
    """Answer DescribeUserScramCredentials."""
    if not call.may_cluster(AclOperation.DESCRIBE):
        code = KafkaCode.CLUSTER_AUTHORIZATION_FAILED
        return {"error_code": code, "error_message": None, "results": [_answer("", _Wrong(code, None))]}
    kept = call.cluster.users.scram
    asked = [each["name"] for each in call.fields["users"] or ()]
    every = {user: None for users in kept.values() for user in users}
    counts = Counter(asked) if asked else dict.fromkeys(every, 1)
    return {"results": [_described(call, user, count) for user, count in counts.items()]}


def _described(call: Call, user: str, count: int) -> Fields:
    if count > 1:
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return {"user": user, "error_code": KafkaCode.DUPLICATE_RESOURCE, "error_message": text}
    found = [
        {"mechanism": number, "iterations": credential.iterations}
        for number, mechanism in NUMBERS.items()
        if (credential := call.cluster.users.scram[mechanism].get(user)) is not None
    ]
    if not found:
        text = f"Attempt to describe a user credential that does not exist: {user}"
        return {"user": user, "error_code": KafkaCode.RESOURCE_NOT_FOUND, "error_message": text}
    return {"user": user, "error_code": KafkaCode.NONE, "credential_infos": found}


# -- changing


def alter_user_scram_credentials(call: Call) -> Fields:
    """Answer AlterUserScramCredentials; a user that is named twice keeps its credentials."""
    asked = [*call.fields["deletions"], *call.fields["upsertions"]]
    counts = Counter(each["name"] for each in asked)
    if not call.may_cluster(AclOperation.ALTER):
        text = "Request AlterUserScramCredentials needs ALTER permission."
        forbidden = _Wrong(KafkaCode.CLUSTER_AUTHORIZATION_FAILED, text)
        return {"results": [_answer(user, forbidden) for user in counts]}
    if call.fields["upsertions"] and not call.has_room():
        full = _Wrong(KafkaCode.POLICY_VIOLATION, NO_KEPT_ROOM)
        return {"results": [_answer(user, full) for user in counts]}
    wrong: dict[str, _Wrong | None] = {}
    for told in asked:
        user = told["name"]
        kept = call.cluster.users.scram.get(NUMBERS.get(told["mechanism"], ""), {})
        wrong[user] = wrong.get(user) or (_TWICE if user in wrong else _trouble(told, kept))
    for told in asked:
        if wrong[told["name"]] is None:
            _change(call, told)
    return {"results": [_answer(user, each) for user, each in wrong.items()]}


def _answer(user: str, wrong: _Wrong | None) -> Fields:
    code, text = (KafkaCode.NONE, None) if wrong is None else wrong
    return {"user": user, "error_code": code, "error_message": text}


def _trouble(told: Fields, kept: dict[str, ScramCredential]) -> _Wrong | None:
    if not told["name"]:
        return _Wrong(KafkaCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if told["mechanism"] not in NUMBERS:
        return _Wrong(KafkaCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if "iterations" not in told:
        text = "Attempt to delete a user credential that does not exist"
        return None if told["name"] in kept else _Wrong(KafkaCode.RESOURCE_NOT_FOUND, text)
    if not LEAST_ITERATIONS <= told["iterations"] <= MOST_ITERATIONS:
        few = "few" if told["iterations"] < LEAST_ITERATIONS else "many"
        return _Wrong(KafkaCode.UNACCEPTABLE_CREDENTIAL, f"Too {few} iterations")
    return None


def _change(call: Call, told: Fields) -> None:
    mechanism = NUMBERS[told["mechanism"]]
    kept = call.cluster.users.scram[mechanism]
    if "iterations" in told:
        password = told["salted_password"], told["salt"], told["iterations"]
        kept[told["name"]] = credential_of_salted(mechanism, *password)
    else:
        del kept[told["name"]]
