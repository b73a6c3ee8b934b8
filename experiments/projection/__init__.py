"""Speedups to expect on other hardware and for other models: sizes, roofline, acceptance, validation."""
