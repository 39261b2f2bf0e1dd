"""The state of the application: the combined reports of workers, groups and logs, and the faults in it."""
