"""Requests to brokers over aiokafka's connections, in words of their own: raw batches, markers, bearer
tokens.
"""
