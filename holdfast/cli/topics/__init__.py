"""Commands on what an application declares: its topics, its graph, its rights, and its reset."""
