"""The rows of an outbox, as a harvester asks its table for them: taking, deleting, marks, epochs, quarantined
rows.
"""
