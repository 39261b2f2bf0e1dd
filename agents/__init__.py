"""Faust workers: the app, the batched transport, one module per agent, the web endpoints."""
