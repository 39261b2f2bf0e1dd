"""`holdfast doctor`: checks a worker's environment, and advises remedies."""
