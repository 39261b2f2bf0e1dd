"""holdfast's own application:

`faust -A holdfast.agents.builtin worker -l info`, or `python -P -m holdfast.agents worker`.
"""

from __future__ import annotations

from holdfast.agents.app import create_app
from holdfast.agents.services.all import processors
from holdfast.config import settings_from_environment

settings = settings_from_environment()
app = create_app(processors(settings), settings)
