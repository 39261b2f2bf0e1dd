"""Records and batches that were set aside: listed, put back, or skipped by an operator."""
