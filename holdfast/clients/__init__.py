"""What a service imports: TableClient and admin verbs."""
