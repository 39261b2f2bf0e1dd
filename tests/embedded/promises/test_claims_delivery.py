"""Claims, on the embedded broker."""

from __future__ import annotations

from tests.clients.claims import test_delivery
from tests.embedded.promises.bodies import bodies_of

globals().update(bodies_of(test_delivery))
