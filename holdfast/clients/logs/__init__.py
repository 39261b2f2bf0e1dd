"""Record batches of logs, told in the words of a report."""
