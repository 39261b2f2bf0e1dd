"""The scenes of the demo, one module each, and what each proves."""
