"""Record batches of logs, described for a report."""
