"""Quality of outputs, by references or by tests."""
