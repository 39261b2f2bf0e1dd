"""Authentication and authorization of the embedded broker: SASL, TLS, and access control lists."""
