"""Upkeep of the lake: joining small files, and removing those that no version needs."""
