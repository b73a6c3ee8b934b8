"""Resumable training and its data."""
