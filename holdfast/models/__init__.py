"""Kafka's own coordinators and leaders as executable rules: what the folds and the tests are held against."""
