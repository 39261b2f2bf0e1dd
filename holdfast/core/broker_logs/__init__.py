"""The brokers' own logs, folded: transactions, committed offsets, and transactions whose ends were lost."""
