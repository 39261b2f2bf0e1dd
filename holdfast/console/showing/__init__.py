"""The appearance of pages: templates and assets, numbers and times in words, long lists, the drawing of the
graph.
"""
