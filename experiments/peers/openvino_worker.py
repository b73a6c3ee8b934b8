"""Process of OpenVINO GenAI: plain decoding, a draft model, and prompt lookup, each by its own pipeline."""

import sys
from typing import Any

import numpy as np
import openvino
import openvino_genai

from experiments.peers.worker import MAX_NGRAM, serve

TOKENS_PER_BLOCK = 32  # of the paged KV cache on a CPU
DEVICE = "CPU"


class OpenVino:
    """Pipelines of one target, all in float32."""

    version = openvino_genai.__version__

    def __init__(self, *, target: str, drafter: str | None, most_drafted: int, threads: int, context: int):
        # By default the precision is bfloat16 where the processor has it, and the KV cache holds 8-bit integers.
        precision = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        options: dict[str, Any] = precision | {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # a prompt that comes again is read again
        scheduler.max_num_batched_tokens = sys.maxsize  # prompts are read in one pass, as LLMPipeline does by default
        scheduler.num_kv_blocks = 2 * (-(-(context + most_drafted) // TOKENS_PER_BLOCK) + 1)

        def pipeline(**more: Any) -> Any:
            return openvino_genai.LLMPipeline(target, DEVICE, scheduler_config=scheduler, **options, **more)

        self._pipelines = {"plain": pipeline()}
        if most_drafted:
            self._pipelines["prompt_lookup"] = pipeline(prompt_lookup=True)
        if most_drafted and drafter is not None:
            draft_model = openvino_genai.draft_model(drafter, DEVICE, **options)
            self._pipelines["draft_model"] = pipeline(draft_model=draft_model)

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
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_new_tokens
        config.ignore_eos = not eos_ids
        if eos_ids:
            config.set_eos_token_id(eos_ids[0])
            config.stop_token_ids = set(eos_ids)
        if temperature:
            config.do_sample, config.temperature, config.rng_seed = True, temperature, seed
        if arm != "plain":
            config.num_assistant_tokens = gamma
        if arm == "prompt_lookup":
            config.max_ngram_size = MAX_NGRAM
        found = self._pipelines[arm].generate(openvino.Tensor(np.array([prompt])), config)
        return list(found.tokens[0]), found.perf_metrics.get_ttft().mean / 1000


if __name__ == "__main__":
    serve(OpenVino)
