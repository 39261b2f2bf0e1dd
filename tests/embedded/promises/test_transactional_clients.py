"""holdfast's own transactional client, on the embedded broker."""

from __future__ import annotations

from tests.embedded.promises.bodies import bodies_of
from tests.kafka import test_transactional_client

globals().update(bodies_of(test_transactional_client))
