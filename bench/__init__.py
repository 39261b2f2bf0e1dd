"""Benchmarks with rivals' baselines, printing ratios. Not tests: nothing here asserts a time."""
