"""A real PostgreSQL, MariaDB or MySQL on this machine."""
