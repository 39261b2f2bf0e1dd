"""The transactional outbox room."""
