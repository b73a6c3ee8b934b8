"""Measurement of points: counts, timings and the resulting records."""
