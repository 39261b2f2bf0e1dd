"""TLS between clients that query tables and the workers that answer, from the `web_tls_*` settings; both
sides share them.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.config import HostList, WebSettings
from holdfast.errors import AccessError, ConfigError


class WorkerToken:
    """To whom `web_token` is sent: to the hosts and networks that `web_token_networks` names, over https and
    plain http alike, and over https to the host that this process itself advertises.

    A verified certificate alone is not enough: anybody can have one for a host of their own, and any URL may
    occur in a worker's record. Where the settings name certificates the fleet speaks TLS, and the token never
    goes without it.
    """

    def __init__(self, settings: WebSettings) -> None:
        self._headers = (
            {} if settings.web_token is None else {"Authorization": f"Bearer {settings.web_token}"}
        )
        self._tls_only = settings.web_tls_ca is not None or settings.web_tls_cert is not None
        self._allowed = HostList(settings.web_token_networks)
        self._own = (urlsplit(settings.advertised_url).hostname or "").lower()

    def headers(self, url: str) -> Mapping[str, str]:
        """Return the headers for a request to *url*; raises AccessError, with nothing sent, when the token
        must not go there.
        """
        if not self._headers:
            return self._headers
        parts = urlsplit(url)
        secure, host = parts.scheme == "https", parts.hostname or ""
        if not secure and self._tls_only:
            raise AccessError(
                f"web_token is not sent to {url[:100]!a} over plain http: let the workers speak https"
            )
        if host in self._allowed or (secure and host == self._own):
            return self._headers
        raise AccessError(
            f"web_token is not sent to {url[:100]!a}{'' if secure else ' over plain http'}: if it is a worker"
            " of yours, name its host or network in web_token_networks"
        )

    def withheld_by_others(self, url: str) -> bool:
        """Return whether others with these settings do not send the token to *url*, and so cannot ask it."""
        return bool(self._headers) and (urlsplit(url).hostname or "") not in self._allowed


def server_tls(settings: WebSettings) -> ssl.SSLContext | None:
    """Return how the web port speaks TLS, None when it speaks plain HTTP; with `web_tls_ca`, only to
    holders of a certificate.
    """
    return port_tls("web_tls", settings.web_tls_cert, settings.web_tls_key, settings.web_tls_ca)


def port_tls(
    prefix: str, certificate: Path | None, key: Path | None, authority: Path | None
) -> ssl.SSLContext | None:
    """Return how a port speaks TLS, None without a certificate; with an *authority*, only to holders of a
    certificate of it.

    *prefix* is how the settings are called, such as `web_tls`; ConfigError names them where the files cannot
    be used.
    """
    if certificate is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _present(context, certificate, key, prefix)
    if authority is not None:
        with _explained(f"{prefix}_ca", authority):
            context.load_verify_locations(cafile=authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(settings: WebSettings) -> ssl.SSLContext:
    """Return how to ask a worker over https: trust and present what the settings name.

    Trusted are the authorities in `web_tls_ca`; without them the system's (SSL_CERT_FILE adds to these) and
    `web_tls_cert` itself, so that workers that share a certificate can ask each other. The worker's name must
    be in its certificate in any case.
    """
    if settings.web_tls_ca is not None:
        with _explained("web_tls_ca", settings.web_tls_ca):
            context = ssl.create_default_context(cafile=settings.web_tls_ca)
    else:
        context = ssl.create_default_context()
        if settings.web_tls_cert is not None:
            with _explained("web_tls_cert", settings.web_tls_cert):
                context.load_verify_locations(cafile=settings.web_tls_cert)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.web_tls_cert is not None and settings.web_tls_key is not None:
        _present(context, settings.web_tls_cert, settings.web_tls_key)
    return context


def _present(context: ssl.SSLContext, certificate: Path, key: Path, prefix: str = "web_tls") -> None:
    with _explained(f"{prefix}_cert and {prefix}_key", certificate, key):
        # A callable, since OpenSSL would otherwise stop a worker to ask for a password on the terminal.
        context.load_cert_chain(certificate, key, lambda: "")


@contextmanager
def _explained(name: str, *places: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"{name}: cannot use {', '.join(map(str, places))}: {error}; give readable PEM files that belong"
            " together"
        ) from error
