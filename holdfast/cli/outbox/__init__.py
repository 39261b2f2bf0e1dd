"""Commands on the outbox of a service and its harvest."""
