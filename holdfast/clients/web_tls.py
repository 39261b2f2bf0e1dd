"""TLS between those who ask tables and the workers that answer, from the `web_tls_*` settings; both sides share them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.config import Settings
from holdfast.errors import ConfigError


def server_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return how the web port speaks TLS, None when it speaks plain HTTP; with `web_tls_ca`, only to holders of a certificate."""
    if settings.web_tls_cert is None or settings.web_tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _present(context, settings.web_tls_cert, settings.web_tls_key)
    if settings.web_tls_ca is not None:
        with _explained("web_tls_ca", settings.web_tls_ca):
            context.load_verify_locations(cafile=settings.web_tls_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(settings: Settings) -> ssl.SSLContext:
    """Return how to ask a worker over https: trust and present what the settings name.

    Trusted are the authorities in `web_tls_ca`; without them the system's (SSL_CERT_FILE adds to these) and `web_tls_cert` itself, so that
    workers that share a certificate can ask each other. The worker's name must be in its certificate in any case.
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


def _present(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    with _explained("web_tls_cert and web_tls_key", certificate, key):
        # A callable, since OpenSSL would otherwise stop a worker to ask for a password on the terminal.
        context.load_cert_chain(certificate, key, lambda: "")


@contextmanager
def _explained(name: str, *places: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"{name}: cannot use {', '.join(map(str, places))}: {error}; give readable PEM files that belong together"
        ) from error
