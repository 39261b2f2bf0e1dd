"""Claims, on the embedded broker."""

from __future__ import annotations

import pytest

from tests.clients.claims import test_strangers_transactions
from tests.embedded.promises.bodies import bodies_of

pytestmark = pytest.mark.long

globals().update(bodies_of(test_strangers_transactions))
