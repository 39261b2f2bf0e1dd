"""`make release`: builds what is published, and tries it in empty environments. Nothing here is packaged."""
