"""The decoding loops: speculative, autoregressive and beam search."""
