"""An engine that counts upwards from a prompt's last token, as a process that a benchmark can start."""

import sys

from experiments.peers.worker import serve


class Counting:
    """Adds one per token, modulo 50; its first token takes a quarter of a second, by its own account."""

    version = "1.2"

    def __init__(self, *, target, drafter, most_drafted, threads, context):
        if not target:
            raise FileNotFoundError("there is no model")
        print("a banner")  # must not be read as an answer

    def generate(self, *, arm, gamma, prompt, max_new_tokens, eos_ids, temperature, seed):
        if arm == "broken":
            sys.exit("the arm fell off")
        return [(prompt[-1] + 1 + place) % 50 for place in range(max_new_tokens)], 0.25


if __name__ == "__main__":
    serve(Counting)
