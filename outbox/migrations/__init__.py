"""The outbox's migrations: what alembic runs."""
