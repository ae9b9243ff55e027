"""Read rules: how a query gets something out of the memory again."""
