"""The partitions that a worker holds, and its announcements of them to the others."""
