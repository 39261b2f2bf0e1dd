"""What the embedded broker answers to each request, by subject."""
