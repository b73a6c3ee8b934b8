"""Losslessness proof: the matrix of cells and the negative controls."""
