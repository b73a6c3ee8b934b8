"""Worlds in which a policy acts, for speculative execution beyond text."""
