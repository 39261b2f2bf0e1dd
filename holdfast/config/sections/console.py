"""Settings of the console."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.config.sections.section import Section, is_topic, setting
from holdfast.config.sections.web import bind_problems, is_loopback, is_origin, token_problem


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings(Section):
    """Section `[console]`: where `holdfast console` listens, and who may look."""

    console_bind: str = setting("127.0.0.1", "address the console listens on")
    console_port: int = setting(6067, "port of the console", low=1, high=65_535)
    console_token: str | None = setting(None, "secret with which people sign in to the console", secret=True)

    console_acting_token: str | None = setting(
        None, "secret of those who may act in the console, not only look", secret=True
    )
    console_audit_topic: str | None = setting(
        None, "topic that says who did what in the console; nobody acts without it"
    )

    console_on_workers: bool = setting(
        False, "each worker serves the console too, below /console of its web port"
    )

    console_lake: str | None = setting(
        None, "folder or address of the lake that the console shows, and reads to explain rows"
    )

    console_tls_cert: Path | None = setting(None, "PEM certificate of the console")
    console_tls_key: Path | None = setting(None, "PEM key of the console")
    console_tls_ca: Path | None = setting(
        None, "PEM authorities of people's certificates; whoever holds one may look, and nobody else"
    )
    console_oidc_issuer: str | None = setting(None, "OpenID provider with which people sign in, its issuer")
    console_oidc_client: str | None = setting(None, "id under which that provider knows the console")
    console_oidc_secret: str | None = setting(
        None, "secret that the provider gave the console, if any", secret=True
    )
    console_oidc_claim: str = setting("email", "claim of the provider's token that is a person's name")
    console_url: str | None = setting(
        None, "address of the console as browsers know it; default from bind address and port"
    )
    console_names: str | None = setting(
        None, "who may look, by the name in a certificate or token: names with commas, * for any part"
    )
    console_acting_names: str | None = setting(None, "who of these may act, not only look")

    @property
    def console_address(self) -> str:
        """Return the address of the console: `console_url`, else made from bind address and port."""
        if self.console_url is not None:
            return self.console_url
        host = f"[{self.console_bind}]" if ":" in self.console_bind else self.console_bind
        return f"{'https' if self.console_tls_cert else 'http'}://{host}:{self.console_port}"

    @property
    def console_is_guarded(self) -> bool:
        """Return whether people have to show who they are."""
        return any((self.console_token, self.console_tls_ca, self.console_oidc_issuer))

    @property
    def console_asks_who(self) -> bool:
        """Return whether people have to sign in, by a page: on a worker's port there is no other way."""
        return any((self.console_token, self.console_oidc_issuer))

    def problems(self) -> Iterator[str]:
        yield from bind_problems(self, "console_bind")
        for name in ("console_token", "console_acting_token"):
            if (problem := token_problem(getattr(self, name))) is not None:
                yield f"{self.place(name)} {problem}"
        for name in ("console_acting_token", "console_acting_names"):
            if getattr(self, name) is not None and self.console_audit_topic is None:
                yield (
                    f"{self.place(name)} lets people act: name the topic that says who did what, "
                    "console_audit_topic, and create it"
                )
        if self.console_audit_topic is not None and not is_topic(self.console_audit_topic):
            yield (
                f"{self.place('console_audit_topic')} is {self.console_audit_topic!r:.300}, which is not a"
                " valid Kafka topic name"
            )
        yield from self._console_tls_problems()
        yield from self._console_oidc_problems()
        if self.console_acting_token is not None and self.console_acting_token == self.console_token:
            yield (
                "console_acting_token and console_token are the same: then everybody who looks may act;"
                " choose another"
            )
        if not is_loopback(self.console_bind) and not self.console_is_guarded:
            yield (
                f"{self.place('console_bind')} is {self.console_bind:.300}, which others can reach: set"
                " console_token (best by HOLDFAST_CONSOLE_TOKEN_FILE), console_tls_ca or"
                " console_oidc_issuer, or bind to 127.0.0.1"
            )

    def _console_tls_problems(self) -> Iterator[str]:
        if (self.console_tls_cert is None) != (self.console_tls_key is None):
            yield "console_tls_cert and console_tls_key belong together: set both or none"
        if self.console_tls_ca is None:
            return
        if self.console_tls_cert is None:
            yield (
                "console_tls_ca asks people for certificates, which needs TLS: set console_tls_cert and"
                " console_tls_key too"
            )
        others = [
            name
            for name in ("console_token", "console_acting_token", "console_oidc_issuer")
            if getattr(self, name) is not None
        ]
        if others:
            yield f"console_tls_ca and {others[0]} both say who people are: choose one"

    def _console_oidc_problems(self) -> Iterator[str]:
        issuer = self.console_oidc_issuer
        if self.console_url is not None and not is_origin(self.console_url):
            yield (
                f"{self.place('console_url')} is {self.console_url!r:.300}; write https://host or"
                " https://host:port"
            )
        if issuer is None:
            if self.console_acting_names is not None and self.console_tls_ca is None:
                yield (
                    "console_acting_names are names in certificates or tokens: set console_tls_ca or"
                    " console_oidc_issuer"
                )
            return
        try:
            parts = urlsplit(issuer)
        except ValueError:  # brackets without an address in them
            parts = urlsplit("")
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
            yield (
                f"{self.place('console_oidc_issuer')} is {issuer!r:.300}; write the provider's https address"
            )
        if self.console_oidc_client is None:
            yield "console_oidc_issuer needs console_oidc_client, the id under which it knows the console"
        if self.console_names is None:
            yield (
                "console_oidc_issuer says who people are, not who of them may look: name them in"
                " console_names, as *@example.org, or * for all whom it signs in"
            )
