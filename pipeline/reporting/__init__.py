"""The derived tables for a period, as one page: ownership, takeovers, anomalies, quarantined records."""
