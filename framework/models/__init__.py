"""Hugging Face models whose rows advance and roll back independently."""
