"""Records and sweeps on disk: reading, grouping and comparing them."""
