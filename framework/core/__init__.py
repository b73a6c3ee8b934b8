"""Sequences, drafts, trees, sampling, logits processors and the drafter protocol."""
