"""Producers and what became of their records: names, stamps, the ledger of sequences, the audit of an
outbox.
"""
