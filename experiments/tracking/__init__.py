"""Trackers: JSON files on disk, and Weights & Biases."""
