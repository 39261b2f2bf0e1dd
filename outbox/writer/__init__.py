"""Writing to the outbox, inside the transaction of the service."""
