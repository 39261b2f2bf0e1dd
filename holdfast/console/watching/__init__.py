"""What is known of the application: what workers, groups and logs tell, put together, and what is not well in
it.
"""
