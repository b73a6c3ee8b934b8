"""Other engines timed beside our decoders: Hugging Face's loops, and production engines in processes of their own."""
