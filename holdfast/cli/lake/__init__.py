"""What the commands that read history share: where it lies, what reads it, and how far they have come."""
