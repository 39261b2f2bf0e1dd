"""Connections whose sessions end: they log in again, as the same user, or are closed (KIP-368)."""

from __future__ import annotations

from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.guarded import PASSWORDS, SESSION_MS, GuardedTalk
from tests.embedded.transcripts.guarded_scenarios import SCENARIOS, answer, hears_no_more, scenario

__all__ = ["SCENARIOS"]

AGAIN_MS = 1_100
"""Least time between two logins of a client on one connection."""


def log_in(
    talk: GuardedTalk, client: RawClient, user: str = "alice", mechanism: str = "PLAIN", version: int = 2
) -> None:
    """Log in, and record the answers."""
    if answer(talk, client, "SaslHandshake", 1, mechanism=mechanism).get("error_code") == 0:
        token = f"\0{user}\0{PASSWORDS[user]}".encode()
        answer(talk, client, "SaslAuthenticate", version, auth_bytes=token)


def uses(talk: GuardedTalk, client: RawClient) -> None:
    answer(talk, client, "ListGroups", 4)


@scenario
def sessions_begun_anew(talk: GuardedTalk) -> None:
    """Once a second, by the same user and mechanism, whatever was asked before."""
    for version in (0, 1, 2):
        with talk.in_sessions() as client:
            log_in(talk, client, version=version)
            log_in(talk, client, version=version)
            uses(talk, client)
            answer(talk, client, "SaslHandshake", 1, mechanism="PLAIN")
            uses(talk, client)
    for user, mechanism in (("bob", "PLAIN"), ("alice", "SCRAM-SHA-256"), ("alice", "NONE")):
        with talk.in_sessions() as client:
            log_in(talk, client)
            log_in(talk, client, user, mechanism)
            hears_no_more(talk, client)
    with talk.in_sessions() as client:
        log_in(talk, client)
        answer(talk, client, "SaslHandshake", 1, mechanism="PLAIN")
        answer(talk, client, "SaslAuthenticate", 2, auth_bytes=b"\0alice\0wrong")
        hears_no_more(talk, client)
    with talk.in_sessions() as client:
        log_in(talk, client)
        answer(talk, client, "SaslAuthenticate", 2, auth_bytes=b"\0alice\0alice-secret")
        log_in(talk, client)
        talk.guarded.pass_time(AGAIN_MS)
        log_in(talk, client)
        uses(talk, client)


@scenario
def sessions_that_have_ended(talk: GuardedTalk) -> None:
    clients = [talk.in_sessions() for _ in range(4)]
    for each in clients:
        log_in(talk, each)
        uses(talk, each)
    talk.guarded.pass_time(SESSION_MS + 500)
    uses(talk, clients[0])
    answer(talk, clients[1], "ApiVersions", 0)
    log_in(talk, clients[2])
    uses(talk, clients[2])
    answer(talk, clients[3], "SaslAuthenticate", 2, auth_bytes=b"\0alice\0alice-secret")
    for each in clients:
        each.close()
