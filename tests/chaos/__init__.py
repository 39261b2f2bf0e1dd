"""Whole workers under trouble: killed, stopped, cut off, out of disk, fed with poison, moved about."""
