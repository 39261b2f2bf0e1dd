"""One claim client as a pure machine: how it comes by claims, renews them, and gives them back."""
