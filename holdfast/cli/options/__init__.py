"""Options that several commands share: what they load, whom they ask, and where they serve metrics."""
