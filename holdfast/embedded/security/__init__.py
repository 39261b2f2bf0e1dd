"""Who may connect to the embedded broker, and what each principal may do there: SASL, TLS, and access control
lists.
"""
