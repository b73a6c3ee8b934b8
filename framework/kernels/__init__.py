"""Products of few rows in C++ for compiled graphs, and linear layers with int8 weights."""
