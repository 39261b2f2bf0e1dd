"""Tests of aggregations and windows."""
