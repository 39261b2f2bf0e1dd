"""The users of an embedded cluster, and how one shows who it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from holdfast.embedded.kept_room import OVERHEAD_BYTES
from holdfast.embedded.security import plain, scram
from holdfast.embedded.security.plain import PLAIN, PlainExchange
from holdfast.embedded.security.sasl import SaslExchange
from holdfast.embedded.security.scram import ScramCredential, ScramExchange

ALL_MECHANISMS = (plain.PLAIN, *sorted(scram.MECHANISMS, reverse=True))
"""In the order in which Kafka names them."""
_NONCE_BYTES = 16


class SaslUsers:
    """Users with *passwords*, who may show them by each of *mechanisms*.

    Credentials of SCRAM can be changed by clients; passwords of PLAIN cannot, as in Kafka.
    """

    def __init__(self, passwords: Mapping[str, str], mechanisms: Iterable[str], chance: Random) -> None:
        self.mechanisms = tuple(mechanisms)
        self._passwords, self._chance = dict(passwords), chance
        self.scram: dict[str, dict[str, ScramCredential]] = {
            mechanism: {
                user: scram.credential_of(mechanism, password, chance.randbytes)
                for user, password in passwords.items()
                if mechanism in self.mechanisms
            }
            for mechanism in scram.MECHANISMS
        }

    def kept_bytes(self) -> int:
        """Return about how many bytes the credentials of SCRAM take."""
        return sum(OVERHEAD_BYTES + len(user) for users in self.scram.values() for user in users)

    def begin(self, mechanism: str) -> SaslExchange:
        """Return a new exchange of tokens by one of `mechanisms`."""
        if mechanism == PLAIN:
            return PlainExchange(self._passwords)
        return ScramExchange(
            mechanism, self.scram[mechanism], lambda: self._chance.randbytes(_NONCE_BYTES).hex()
        )
