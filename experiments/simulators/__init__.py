"""Worlds in which a policy acts, and rewards of its texts."""
