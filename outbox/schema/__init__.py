"""The outbox in the database: layouts, tables, their migrations, and the connection that reads them."""
