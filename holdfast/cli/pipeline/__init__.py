"""`holdfast pipeline` and `holdfast report`: commands that land topics in a lake, keep it up, and make tables
and pages of it.
"""
