"""The claim engine: it acts for the member, fetches what is claimed, and delivers it."""
