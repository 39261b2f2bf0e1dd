"""`python -P -m holdfast.agents worker -l info`: holdfast's own application."""

from __future__ import annotations

from holdfast.agents.builtin import app

if __name__ == "__main__":
    app.main()
