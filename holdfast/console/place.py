"""The address of the console's pages: on a port of their own, or below ROOT on a worker's web port."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.config import Settings

ROOT = "/console"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePlace:
    """Pages at *address*, their paths below *root*. *guarded*: people have to authenticate; *certificates*:
    by those with which they connect.
    """

    address: str
    port: int
    root: str = ""
    guarded: bool
    certificates: bool = False

    @property
    def url(self) -> str:
        """Return the address of the overview."""
        return f"{self.address.rstrip('/')}{self.root}/"

    @property
    def secure(self) -> bool:
        """Return whether browsers reach it over TLS alone, so that cookies need nothing else."""
        return self.address.startswith("https:")

    @property
    def cookie(self) -> str:
        """Return the name of its cookies, which know no ports."""
        return f"holdfast-console-{self.port}"


def own_place(settings: Settings) -> ConsolePlace:
    """Return where `holdfast console` serves."""
    return ConsolePlace(
        address=settings.console_address,
        port=settings.console_port,
        guarded=settings.console_is_guarded,
        certificates=settings.console_tls_ca is not None,
    )


def worker_place(settings: Settings) -> ConsolePlace:
    """Return where a worker serves it. Its port's certificates are those of programs, and say nothing of
    people.
    """
    return ConsolePlace(
        address=settings.advertised_url,
        port=settings.web_port,
        root=ROOT,
        guarded=settings.console_asks_who,
    )
