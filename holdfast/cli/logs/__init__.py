"""Commands on what lies in the logs of brokers: batches, transactions, producers."""
