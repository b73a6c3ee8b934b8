"""Search for settings and for skipped layers."""
