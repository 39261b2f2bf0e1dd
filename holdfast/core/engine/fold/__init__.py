"""How the records of one source are folded into rows, and what is set aside or skipped."""
