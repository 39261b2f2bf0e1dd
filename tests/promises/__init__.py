"""The main promises on Apache Kafka, PostgreSQL and Spark, once in each `make test`."""
