"""The embedded broker's answers to requests, by subject."""
