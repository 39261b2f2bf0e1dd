"""Landing: copying records of topics into the lake."""
