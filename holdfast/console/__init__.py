"""The console: pages that show one application as it runs. It is a client of the workers and of Kafka, and
holds no partition.
"""
