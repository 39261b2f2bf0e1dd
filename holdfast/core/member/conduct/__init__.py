"""A member's handling of its claims: it takes, keeps, works on and releases them."""
