"""TLS of the embedded broker: its certificate, and the principal that a client's certificate names."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.clock import system_clock
from holdfast.embedded.settings import HOST
from holdfast.errors import DevBrokerError

ANONYMOUS = "User:ANONYMOUS"
CA_FILE, KEY_FILE = "ca.pem", "key.pem"
_VALID_DAYS, _DAY_MS = 365, 86_400_000


class EmbeddedTls(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files: the broker's *certificate* (with what leads to its authority) and *key*, the *authority*
    that clients trust, and that of clients' own certificates.

    With *clients*, a client that shows a certificate is the principal that it names; it must show one unless
    *clients_may_be_unknown*.
    """

    certificate: Path
    key: Path
    authority: Path
    clients: Path | None = None
    clients_may_be_unknown: bool = False

    @classmethod
    def made_in(cls, folder: Path) -> EmbeddedTls:
        """Return one with a certificate of its own in *folder*, made if there is none: it is its own
        authority and names this machine's loopback only, so it is worthless elsewhere. DevBrokerError without
        the package cryptography.
        """
        certificate, key = folder / CA_FILE, folder / KEY_FILE
        if not (key.exists() and _is_young(certificate)):
            made = _self_signed()
            key.touch(mode=0o600)
            key.write_bytes(made.key)
            certificate.write_bytes(made.certificate)
        return cls(certificate=certificate, key=key, authority=certificate)

    def context(self) -> ssl.SSLContext:
        """Return the context of a listener; DevBrokerError for unusable files."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.clients is not None:
                context.load_verify_locations(self.clients)
                unknown = self.clients_may_be_unknown
                context.verify_mode = ssl.CERT_OPTIONAL if unknown else ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(
                str(each) for each in (self.certificate, self.key, self.clients) if each is not None
            )
            raise DevBrokerError(f"TLS of the embedded Kafka: {files} cannot be used: {error}") from error
        return context


class _Pair(NamedTuple):
    certificate: bytes
    key: bytes


def _is_young(certificate: Path) -> bool:
    try:
        age_ms = system_clock.now_ms() - certificate.stat().st_mtime * 1000
    except FileNotFoundError:
        return False
    return age_ms < (_VALID_DAYS - 1) * _DAY_MS


def _self_signed() -> _Pair:
    import datetime
    import ipaddress

    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise DevBrokerError(
            "a certificate cannot be made without the package cryptography: pip install 'holdfast[tls]', or"
            " give a certificate of your own"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "holdfast embedded")])
    places = [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")]
    now = datetime.datetime.fromtimestamp(system_clock.now_ms() / 1000, datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName(places), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
