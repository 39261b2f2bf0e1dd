"""Publishing the rows of an outbox: the harvester, its two strategies, and what becomes of refused rows."""
