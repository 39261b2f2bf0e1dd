"""What goes on beside the batches: checks, ticks, trimming, and what is skipped."""
