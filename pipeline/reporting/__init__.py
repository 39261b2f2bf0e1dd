"""What the derived tables tell of a time, as one page: ownership, takeovers, anomalies, records that were set
aside.
"""
