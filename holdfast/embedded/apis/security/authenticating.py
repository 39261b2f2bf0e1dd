"""SaslHandshake and SaslAuthenticate of connections that no longer (or never) need them: requests before a
connection is let in are answered by holdfast.embedded.serving.sasl_gate.
"""

from __future__ import annotations

from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.protocol.codes import KafkaCode

_TOO_LATE = "SaslAuthenticate request received after successful authentication"


def sasl_handshake(call: Call) -> Fields:
    """Answer SaslHandshake."""
    return {"error_code": KafkaCode.ILLEGAL_SASL_STATE}


def sasl_authenticate(call: Call) -> Fields:
    """Answer SaslAuthenticate."""
    return {"error_code": KafkaCode.ILLEGAL_SASL_STATE, "error_message": _TOO_LATE}
