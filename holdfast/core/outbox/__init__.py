"""An outbox's harvesters as pure machines: election, numbering and progress, the pacing of transactions."""
