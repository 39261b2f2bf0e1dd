"""Traces of OpenTelemetry: going on with those that services begin, and where their spans go."""
