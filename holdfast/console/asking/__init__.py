"""Questions that take long, asked in processes of their own: whoever looks at another page does not wait, and
one that takes too long is ended.
"""
