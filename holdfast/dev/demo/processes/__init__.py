"""The programs that the demo runs, and what it reads of them."""
