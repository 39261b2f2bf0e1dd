"""The principal that a certificate names, as Java's X500Principal writes it."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.embedded.security.distinguished_name import subject_of

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(*names: x509.RelativeDistinguishedName) -> bytes:
    name, at = x509.Name(names), datetime.datetime(2026, 1, 1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "another")]))
        .public_key(KEY.public_key())
        .serial_number(1 << 150)
        .not_valid_before(at)
        .not_valid_after(at + datetime.timedelta(days=1))
        .sign(KEY, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


def one(oid: x509.ObjectIdentifier, value: str) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName([x509.NameAttribute(oid, value)])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        ([one(NameOID.COMMON_NAME, "shop")], "CN=shop"),
        (
            [
                one(NameOID.COUNTRY_NAME, "DE"),
                one(NameOID.ORGANIZATION_NAME, 'A, "B" & C+D=E#F;<G>\\H'),
                one(NameOID.COMMON_NAME, " Bücher "),
            ],
            'CN=\\ Bücher\\ ,O=A\\, \\"B\\" & C\\+D\\=E\\#F\\;\\<G\\>\\\\H,C=DE',
        ),
        (
            [one(NameOID.DOMAIN_COMPONENT, "org"), one(NameOID.USER_ID, "u" * 200)],
            f"UID={'u' * 200},DC=org",
        ),
        ([one(NameOID.EMAIL_ADDRESS, "a@b")], "1.2.840.113549.1.9.1=#1603614062"),
    ],
)
def test_a_subject_is_written_as_java_writes_it(
    names: list[x509.RelativeDistinguishedName], expected: str
) -> None:
    assert subject_of(certificate(*names)) == expected
