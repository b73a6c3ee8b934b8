"""Drafters that are read from published checkpoints alone, one per file."""
