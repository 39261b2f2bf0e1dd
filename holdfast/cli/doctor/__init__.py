"""`holdfast doctor`: looks at what a worker stands on, and says what to do."""
