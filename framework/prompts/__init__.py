"""Prompt sources, and prompts as token ids."""
