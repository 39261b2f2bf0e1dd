"""The application of `shop` as a worker: `python -P -m tests.schemas.worker worker`."""

from __future__ import annotations

from holdfast.agents.app import create_app
from holdfast.config import settings_from_environment
from tests.schemas.shop import processors

if __name__ == "__main__":
    create_app(processors(settings_from_environment())).main()
