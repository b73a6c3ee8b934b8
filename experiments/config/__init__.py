"""Configs: checks, object construction and one-line errors."""
