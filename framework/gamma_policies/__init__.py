"""Policies that choose gamma for every round, one per file."""
