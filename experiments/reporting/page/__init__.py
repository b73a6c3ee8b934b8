"""Self-contained HTML page of all records."""
