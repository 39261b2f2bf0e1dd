"""One worker without trouble: the yardstick for the other tests, and for the checks themselves."""

from __future__ import annotations

from tests.chaos.conftest import MakeApplication
from tests.proof import prove


def test_a_worker_without_trouble_folds_everything_exactly_once(application: MakeApplication) -> None:
    app = application()
    app.worker().start()
    load = app.load(rate=3_000, limit=12_000)
    acked = load.wait()
    proof = prove(app, acked)
    assert sum(len(each.emits) for each in proof.outcomes.values()) > 500
    assert sum(len(each.refused) for each in proof.outcomes.values()) > 5
