"""Plots of records, as PNG files."""
