"""Work in the background of the batches: checks, ticks, trimming, and skips."""
