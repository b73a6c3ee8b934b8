"""Folder that transformers reads for `model.generate(custom_generate=..., trust_remote_code=True)`."""
