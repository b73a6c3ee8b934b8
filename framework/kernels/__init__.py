"""Operators in C++ for compiled graphs on a CPU, and linear layers with int8 weights."""
