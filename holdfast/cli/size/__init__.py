"""An application's needs of machines and brokers, by formulas whose constants are measured."""
