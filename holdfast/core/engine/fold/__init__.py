"""The fold of records into rows, with deferred results, quarantined records and skips."""
