"""What an application needs of machines and brokers, by formulas whose constants are measured."""
