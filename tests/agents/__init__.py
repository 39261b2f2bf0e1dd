"""Tests of the agents, and programs that they run as worker processes."""
