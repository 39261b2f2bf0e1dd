"""Questions that take long, asked in processes of their own: other pages do not wait for them, and one that
takes too long is ended.
"""
