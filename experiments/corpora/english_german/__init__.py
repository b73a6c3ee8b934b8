"""English sentences with German translations, generated from a lexicon and a grammar."""
