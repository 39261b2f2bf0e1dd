"""The folder of one partition: its segments and what stands beside them."""
