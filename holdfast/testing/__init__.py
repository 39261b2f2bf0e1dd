"""Tests of processors without a broker: see `Topology`.

`holdfast.testing.plugin` gives pytest the fixtures `topology`, `holdfast_broker` and `fresh_topic`.
"""

from holdfast.testing.logs import TopicRecord
from holdfast.testing.refusals import RefusedRecord
from holdfast.testing.topology import Topology, WaitingRecord

__all__ = ["RefusedRecord", "TopicRecord", "Topology", "WaitingRecord"]
