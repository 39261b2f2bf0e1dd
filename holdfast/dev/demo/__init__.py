"""The demo: the whole of holdfast on real parts, narrated step by step and checked."""
