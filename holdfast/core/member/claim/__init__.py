"""One claim of a member: how far it has come, what of it is done, and how fast it goes."""
