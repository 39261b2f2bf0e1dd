"""Traces of OpenTelemetry: continuing those that services begin, and exporting their spans."""
