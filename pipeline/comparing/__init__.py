"""Two versions of a fold over one history: where their rows part."""
