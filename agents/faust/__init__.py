"""Replacements for parts of Faust: transport, recovery, assignor, and the start and end of a worker."""
