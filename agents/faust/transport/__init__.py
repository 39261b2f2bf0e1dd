"""Faust's transport over our own fetcher and admin client: records in batches, and what the group answers
aiokafka.
"""
