"""What every web server of holdfast shares: how it listens, and how it tells who asks."""
