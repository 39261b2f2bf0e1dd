"""The pages: each turns what a URL asks for into what its template shows."""
