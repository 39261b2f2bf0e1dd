"""The demo: the whole of holdfast on real parts, told step by step and checked."""
