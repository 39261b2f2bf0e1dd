"""The leader of a shard, whatever its strategy: its rows on a thread of their own, waits and counts."""
