"""English sentences and their German translations, made from a lexicon and a grammar."""
