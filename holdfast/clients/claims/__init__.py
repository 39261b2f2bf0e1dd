"""The claim consumers: services share partitions by claims on the coordination topic."""
