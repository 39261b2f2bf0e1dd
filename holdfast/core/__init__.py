"""Pure rules: no clock, no chance, no input or output. May import only errors, the standard library and msgspec."""
