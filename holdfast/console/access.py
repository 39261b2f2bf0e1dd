"""Access to the console: the Host header, the token, and the sessions of browsers that have signed in with
it.
"""

from __future__ import annotations

import hmac
import re
import secrets
import string
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.config.sections.section import names_in
from holdfast.console.place import ConsolePlace
from holdfast.web.headers import SAFE, bearer, is_of_another_site, is_secret, names_this_machine
from holdfast.web.port import peer_of

SESSION_S = 12 * 3600.0
LIMIT_SESSIONS = 1_000
LIMIT_FAILURES = 10
LIMIT_WHO = 60
LIMIT_NAME = 200
FAILURES_S = 60.0
LIMIT_GUESSERS = 10_000
OPEN_PATHS = ("/sign-in", "/sign-out", "/assets/")
"""Paths served to anyone: their content reveals nothing about the application."""


class RequestDenied(Exception):
    """A request that gets no page: HTTP status, and why. *sign_in*: it may be asked again once signed in."""

    def __init__(self, status: int, message: str, *, sign_in: bool = False) -> None:
        super().__init__(message)
        self.status, self.sign_in = status, sign_in


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """A browser that has signed in: *ends_s* by the monotonic clock, *who* as that person said, and whether
    it *acts*.

    Forms that act bear *form_token*, which no other site can read. *by_certificate*: it is that of a
    certificate, and does not end.
    """

    ends_s: float
    form_token: str
    who: str
    acts: bool
    by_certificate: bool = False
    subject: str = ""
    """The name that an OpenID provider never gives to another."""


class WrongTokens:
    """Counts the wrong tokens of each peer: LIMIT_FAILURES within FAILURES_S, and it may try no more for a
    while. A peer cannot shut others out.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times_s: dict[tuple[str, str], list[float]] = {}

    def refuse(self, how: str, peer: str) -> None:
        """Raise RequestDenied for a peer that has given too many, in the way *how*."""
        if len(self._recent(how, peer)) >= LIMIT_FAILURES:
            raise RequestDenied(
                429, f"{LIMIT_FAILURES} wrong tokens within {FAILURES_S:.0f} s: wait a minute."
            )

    def note(self, how: str, peer: str) -> None:
        """Count one more."""
        times_s = [*self._recent(how, peer), self._clock.monotonic_s()]
        self._times_s.pop((how, peer), None)
        if len(self._times_s) >= LIMIT_GUESSERS:
            del self._times_s[next(iter(self._times_s))]  # who has longest given none
        self._times_s[how, peer] = times_s

    def _recent(self, how: str, peer: str) -> list[float]:
        since_s = self._clock.monotonic_s() - FAILURES_S
        return [each for each in self._times_s.get((how, peer), ()) if each > since_s]


class ConsoleAccess:
    """The rules of the console.

    Without a token it listens on loopback alone, and the Host header must name this machine.
    What a form sends must come from a page of the console itself.
    """

    def __init__(self, settings: Settings, place: ConsolePlace, *, clock: Clock = system_clock) -> None:
        token, acting = settings.console_token, settings.console_acting_token
        self._token = None if token is None else token.encode()
        self._acting = None if acting is None else acting.encode()
        self._clock, self._place, self._guarded = clock, place, place.guarded
        addresses = settings.console_oidc_issuer is not None and settings.console_oidc_claim == "email"
        self._names = NamePatterns(settings.console_names or "*", addresses=addresses)
        self._acting_names = NamePatterns(settings.console_acting_names or "", addresses=addresses)
        self._certificates = place.certificates
        self._form_key = secrets.token_bytes(32)
        self.by_token = token is not None or acting is not None
        self.by_provider = settings.console_oidc_issuer is not None
        self._sessions: dict[str, ConsoleSession] = {}
        self._wrong = WrongTokens(clock)

    @property
    def place(self) -> ConsolePlace:
        """Return where the pages are."""
        return self._place

    @property
    def guarded(self) -> bool:
        """Return whether people have to show who they are to look."""
        return self._guarded

    @property
    def known(self) -> bool:
        """Return whether there is anything to sign in for."""
        return self.by_token or self.by_provider

    def check(self, request: web.Request) -> None:
        """Raise RequestDenied unless the request may be answered."""
        if not self._guarded and not names_this_machine(request.host):
            raise RequestDenied(
                403, "The Host header must name this machine, since no token protects the console."
            )
        check_site(request)
        path = request.path.removeprefix(self._place.root)
        if not self._guarded or path.startswith(OPEN_PATHS) or self._bears_token(request):
            return
        if self.session(request) is None:
            if self._certificates:
                raise RequestDenied(403, "Your certificate names nobody who may look; see console_names.")
            raise RequestDenied(401, "Sign in first, or send `Authorization: Bearer TOKEN`.", sign_in=True)

    def _bears_token(self, request: web.Request) -> bool:
        given = bearer(request)
        if given is None or self._token is None:
            return False
        self._wrong.refuse("bearer", peer_of_request(request))
        if is_secret(given, self._token):
            return True
        self._wrong.note("bearer", peer_of_request(request))
        return False

    def session(self, request: web.Request) -> ConsoleSession | None:
        """Return the session of a browser, None when it has none or it has ended."""
        if self._certificates:
            return self._of_certificate(request)
        key = request.cookies.get(self._place.cookie, "")
        found = self._sessions.get(key)
        if found is not None and found.ends_s <= self._clock.monotonic_s():
            del self._sessions[key]
            return None
        return found

    def sign_in(self, request: web.Request, given: str, who: str = "") -> str:
        """Return the cookie of a new session; RequestDenied for a wrong token, or after too many of them.

        A user of the acting token names themself as *who*.
        """
        self._wrong.refuse("sign-in", peer_of_request(request))
        acts, who = is_secret(given, self._acting), who.strip()
        if not acts and not is_secret(given, self._token):
            self._wrong.note("sign-in", peer_of_request(request))
            raise RequestDenied(403, "That is no token of this console.")
        if acts and not (1 <= len(who) <= LIMIT_WHO and who.isprintable()):
            raise RequestDenied(
                400, f"This token lets you act: say who you are, in 1 to {LIMIT_WHO} characters."
            )
        return self._admit(who, acts)

    def admit(self, name: str, subject: str = "") -> str:
        """Return the cookie of a new session of a person whose name is known; RequestDenied unless that
        person may look.
        """
        if name not in self._names:
            why = "capital letters and accents count, see" if self._names.has_alike(name) else "see"
            raise RequestDenied(403, f"{name} is not among those who may look; {why} console_names.")
        return self._admit(name, name in self._acting_names, subject)

    def _of_certificate(self, request: web.Request) -> ConsoleSession | None:
        """Return the session of the person in the certificate with which the connection was made."""
        tls = None if request.transport is None else request.transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        if tls is None or not certificate:
            return None
        name = common_name(tls.getpeercert())
        if name not in self._names:
            return None
        token = hmac.new(self._form_key, certificate, "sha256").hexdigest()
        return ConsoleSession(
            float("inf"), token, name, bool(name) and name in self._acting_names, by_certificate=True
        )

    def _admit(self, who: str, acts: bool, subject: str = "") -> str:
        if len(self._sessions) >= LIMIT_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda each: self._sessions[each].ends_s)]
        key = secrets.token_urlsafe(32)
        self._sessions[key] = ConsoleSession(
            self._clock.monotonic_s() + SESSION_S, secrets.token_urlsafe(32), who, acts, subject=subject
        )
        return key

    def actor(self, request: web.Request, form_token: str) -> ConsoleSession:
        """Return the session of the sender of a form that acts; RequestDenied unless that person may, and the
        form is one of the console's own.
        """
        session = self.session(request)
        if session is None or not session.acts:
            raise RequestDenied(
                403,
                "Only those may act who have signed in with console_acting_token, or are among"
                " console_acting_names.",
            )
        if not is_secret(form_token, session.form_token.encode()):
            raise RequestDenied(403, "This form was not made for this session: load the page again.")
        return session

    def remember(self, response: web.Response, key: str) -> None:
        """Have the browser keep the cookie of a session."""
        response.set_cookie(
            self._place.cookie,
            key,
            max_age=int(SESSION_S),
            httponly=True,
            samesite="Strict",
            secure=self._place.secure,
            path=self._place.root or "/",
        )

    def sign_out(self, request: web.Request, response: web.Response) -> None:
        """End a browser's session, and have it forget the cookie."""
        self._sessions.pop(request.cookies.get(self._place.cookie, ""), None)
        response.del_cookie(self._place.cookie, path=self._place.root or "/")


def common_name(certificate: Mapping[str, Any]) -> str:
    """Return the common name in a certificate's subject, as Python's ssl returns it; "" without one that
    people could read.

    >>> common_name({"subject": ((("countryName", "GB"),), (("commonName", "ada"),))}), common_name({})
    ('ada', '')
    """
    for part in certificate.get("subject", ()):
        for kind, value in part:
            if kind == "commonName" and value.isprintable() and len(value) <= LIMIT_NAME:
                return str(value)
    return ""


class NamePatterns:
    """Names of people, read from a list with commas in which * stands for any part.

    A name is in it by every letter as it is written: what looks alike, or is so in lower case, may be
    another's, such as the Kelvin sign and k. Only of *addresses* of email the domain is compared as DNS does,
    by ASCII letters in either case.

    >>> people = NamePatterns("ada, *@Example.org", addresses=True)
    >>> [name in people for name in ("ada", "Ada", "bob@example.ORG", "bob@example.org.evil", "bob@ex\u212ample.org")]
    [True, False, True, False, False]
    >>> "kay" in NamePatterns("\u212aay"), "KAY" in NamePatterns("kay"), "" in NamePatterns(""), "" in NamePatterns("*")
    (False, False, False, True)
    """  # noqa: E501

    def __init__(self, text: str, *, addresses: bool = False) -> None:
        self._text, self._addresses = text, addresses
        self._patterns = [
            re.compile(re.escape(self._compared(each)).replace(r"\*", ".*")) for each in names_in(text)
        ]

    def __contains__(self, name: str) -> bool:
        name = self._compared(name)
        return any(each.fullmatch(name) for each in self._patterns)

    def has_alike(self, name: str) -> bool:
        """Return whether *name* could be taken for one of these, by people and by Unicode."""
        return _alike(name) in NamePatterns(_alike(self._text))

    def _compared(self, name: str) -> str:
        local, at, domain = name.rpartition("@")
        return f"{local}{at}{domain.translate(_LOWER)}" if at and self._addresses else name


def _alike(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


_LOWER = {ord(upper): upper.lower() for upper in string.ascii_uppercase}


def peer_of_request(request: web.Request) -> str:
    """Return the peer under which a request is counted, "" where it has left."""
    return peer_of(request.remote) if request.remote else ""


def check_site(request: web.Request) -> None:
    """Refuse requests from a page of another site, unless a person followed a link, and a form of unknown
    origin.
    """
    told = "Sec-Fetch-Site" in request.headers or "Origin" in request.headers
    # What bears a token is no browser's: it has no cookies that others could use.
    unknown = request.method not in SAFE and not told and "Authorization" not in request.headers
    if unknown or is_of_another_site(request):
        raise RequestDenied(403, "This was not sent from a page of the console.")
