"""Reading tables from any process: which worker to ask, and what it answers."""
