"""Tallies of rounds, formulas of the theory, comparison of decoded tokens, and stopwatches."""
