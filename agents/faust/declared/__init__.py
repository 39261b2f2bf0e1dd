"""What an application declares of Faust's own, beside its processors: settings, agents, topics and tables."""
