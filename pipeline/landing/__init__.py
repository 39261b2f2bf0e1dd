"""How records of topics get into the lake."""
