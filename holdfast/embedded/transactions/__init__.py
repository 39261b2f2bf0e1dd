"""The embedded broker's transaction coordinator: holdfast.models.transaction_coordinator, with markers into
logs.
"""
