"""`holdfast worker`: starts the workers of an application on this machine, and keeps them running."""
