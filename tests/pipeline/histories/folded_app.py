"""An application of the processor of accounts that folds topic "t"."""

from __future__ import annotations

from tests.pipeline.accounts import accounts

processors = [accounts("t")]
