"""Commands that land topics in a lake, replay processors and hold tables against the replay."""
