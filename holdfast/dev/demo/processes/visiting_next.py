"""`python -P -m holdfast.dev.demo.processes.visiting_next worker`: the application of `visiting.py`, in
version 2 of its table.
"""

from __future__ import annotations

from holdfast.agents.app import create_app
from holdfast.dev.demo.processes.visiting import visits_next

if __name__ == "__main__":
    create_app([visits_next]).main()
