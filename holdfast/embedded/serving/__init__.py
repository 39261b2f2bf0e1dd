"""Connections of the embedded broker: frames in, frames out, in order."""
