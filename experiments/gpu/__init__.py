"""Steps of the acceptance on a GPU; they need PyTorch, transformers, safetensors and NumPy only."""
