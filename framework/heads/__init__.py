"""Heads trained on the target's hidden states, and their checkpoints."""
