"""The topics of claim groups as their members read and write them."""
