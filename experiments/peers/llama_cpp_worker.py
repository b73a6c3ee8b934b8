"""Process of llama.cpp: plain decoding by its own functions, and the prompt lookup of llama-cpp-python."""

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from experiments.peers.worker import MAX_NGRAM, serve

FLOAT32 = 0  # GGML_TYPE_F32; by default the KV cache is in float16


class LlamaCpp:
    """One target, in float32, for each arm."""

    version = llama_cpp.__version__

    def __init__(self, *, target: str, drafter: str | None, most_drafted: int, threads: int, context: int):
        size = context + most_drafted + 1  # the last round may draft beyond the last token

        def loaded(draft_model: LlamaPromptLookupDecoding | None = None) -> llama_cpp.Llama:
            return llama_cpp.Llama(
                target,
                n_ctx=size,
                n_batch=size,  # prompts are read in one call, and the logits of all tokens have a place
                n_threads=threads,
                n_threads_batch=threads,
                type_k=FLOAT32,
                type_v=FLOAT32,
                draft_model=draft_model,
                verbose=False,
            )

        self._plain = loaded()
        self._drafter = LlamaPromptLookupDecoding(max_ngram_size=MAX_NGRAM)
        if most_drafted:
            self._lookup = loaded(self._drafter)

    def generate(
        self,
        *,
        arm: str,
        gamma: int,
        prompt: list[int],
        max_new_tokens: int,
        eos_ids: list[int],
        temperature: float,
        seed: int,
    ) -> tuple[list[int], float]:
        begin, first, tokens = time.perf_counter(), 0.0, []
        drawn = self._decode(prompt, temperature, seed) if arm == "plain" else self._look_up(prompt, gamma)
        for token in islice(drawn, max_new_tokens):
            first = first or time.perf_counter() - begin
            tokens.append(token)
            if token in eos_ids:
                break
        return tokens, first

    def _decode(self, prompt: list[int], temperature: float, seed: int) -> Iterator[int]:
        """Yield tokens from llama.cpp's own functions, without the per-token work of `Llama.generate`."""
        context = self._plain.ctx
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        sampler = _sampler(temperature, seed)
        try:
            read = prompt
            while True:
                tokens = (llama_cpp.llama_token * len(read))(*read)
                if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(read))):
                    raise RuntimeError("llama_decode failed")
                read = [llama_cpp.llama_sampler_sample(sampler, context, -1)]
                yield read[0]
        finally:
            llama_cpp.llama_sampler_free(sampler)

    def _look_up(self, prompt: list[int], gamma: int) -> Iterator[int]:
        self._drafter.num_pred_tokens = gamma
        self._lookup.reset()  # otherwise a prompt that comes again is not read again
        return self._lookup.generate(prompt, temp=0.0)


def _sampler(temperature: float, seed: int) -> Any:
    sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    if temperature:
        llama_cpp.llama_sampler_chain_add(sampler, llama_cpp.llama_sampler_init_temp(temperature))
        llama_cpp.llama_sampler_chain_add(sampler, llama_cpp.llama_sampler_init_dist(seed))
    else:
        llama_cpp.llama_sampler_chain_add(sampler, llama_cpp.llama_sampler_init_greedy())
    return sampler


if __name__ == "__main__":
    serve(LlamaCpp)
