"""What holdfast says to brokers in its own words, over aiokafka's connections: fetching, raw logs,
requests that no library has.
"""
