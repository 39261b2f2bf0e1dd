"""Parts shared by every web server of holdfast: the listening port, and the authentication of requests."""
