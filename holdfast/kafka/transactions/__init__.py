"""Transactional producers, which end transactions and refuse older owners."""
