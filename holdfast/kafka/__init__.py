"""The one layer that talks to Kafka: clients and what their error codes mean, logs read to their ends,
batches that cannot be read, and the requests that no library has, over aiokafka's connections.
"""
