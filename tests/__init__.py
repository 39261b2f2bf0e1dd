"""Tests, by room; `harness` and `proof` run real workers on a real broker and judge what they did."""
