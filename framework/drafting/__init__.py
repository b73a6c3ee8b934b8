"""Building blocks of drafters."""
