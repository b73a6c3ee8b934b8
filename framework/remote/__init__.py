"""Drafters that run in another process."""
