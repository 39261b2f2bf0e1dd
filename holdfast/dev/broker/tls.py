"""One certificate for all nodes of a development cluster, made with the JDK's own `keytool`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from holdfast.dev.broker.properties import CA_FILE, STORE_FILE
from holdfast.errors import DevBrokerError
from holdfast.jars import find_java

_ALIAS = "holdfast"
_VALID_DAYS = "365"


def ensure_certificate(folder: Path, password: str) -> None:
    """Make sure *folder* holds the nodes' key store and, as PEM, the certificate that clients trust.

    It is its own authority and names only this machine's loopback, so it is worthless anywhere else.
    """
    store, certificate = folder / STORE_FILE, folder / CA_FILE
    if store.exists() and certificate.exists():
        return
    store.unlink(missing_ok=True)
    common = [
        "-keystore",
        str(store),
        "-storetype",
        "PKCS12",
        "-storepass:env",
        "HOLDFAST_STORE_PASSWORD",
        "-alias",
        _ALIAS,
    ]
    subject = ["-dname", "CN=holdfast dev", "-ext", "san=ip:127.0.0.1,dns:localhost", "-ext", "bc:c=ca:true"]
    _keytool(
        [
            "-genkeypair",
            "-keyalg",
            "EC",
            "-groupname",
            "secp256r1",
            "-validity",
            _VALID_DAYS,
            *subject,
            *common,
        ],
        password,
    )
    _keytool(["-exportcert", "-rfc", "-file", str(certificate), *common], password)
    store.chmod(0o600)


def _keytool(arguments: list[str], password: str) -> None:
    keytool = find_java().resolve().with_name("keytool")
    if not keytool.exists():
        raise DevBrokerError(
            f"no keytool beside {find_java()}: TLS needs a whole JDK; install one, leave --sasl"
            " out, or take the embedded Kafka: `holdfast dev up --embedded`"
        )
    # By the environment, not as an argument that every user of the machine can list.
    environment = {"HOLDFAST_STORE_PASSWORD": password}
    # A JVM of half a second: without these flags it takes twice the processor time.
    frugal = ["-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC"]
    ran = subprocess.run(
        [str(keytool), *frugal, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    if ran.returncode != 0:
        raise DevBrokerError(f"keytool could not make a certificate: {(ran.stdout + ran.stderr).strip()}")
