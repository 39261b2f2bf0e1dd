"""The framework's rules: what a user declares, how records are folded into rows, and how rows are written
down.
"""
