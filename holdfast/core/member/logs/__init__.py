"""The topics of claims as a member sees them."""
