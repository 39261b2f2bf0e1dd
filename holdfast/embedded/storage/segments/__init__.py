"""The folder of one partition: its segments and their additional files."""
