"""One module a layout and step; each layout is a branch."""
