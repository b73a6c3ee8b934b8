"""The engine inside transformers' `generate`: a function, and a folder, for its argument custom_generate."""
