"""Prompt sources and corpora for this project's tasks."""
