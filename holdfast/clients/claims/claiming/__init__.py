"""The claim engine: it acts for the member, fetches the messages of its claims, and delivers them."""
