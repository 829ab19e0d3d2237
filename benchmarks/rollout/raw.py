"""vLLM itself on given prompts, in a process of its own: `python -m benchmarks.rollout.raw JOB.json`.

Prints tokens, seconds as JSON. The prompts of each agent are one call of `LLM.generate`, one agent after the
other, as a team needs them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(path: str) -> None:
    """Sample what the job says."""
    from mappa_train.engine.vllm_setup import prepare

    prepare()
    from vllm import LLM, SamplingParams, TokensPrompt

    job = json.loads(Path(path).read_text())
    model = LLM(**job["settings"])
    params = SamplingParams(
        temperature=job["temperature"],
        max_tokens=job["max_new_tokens"],
        logprobs=0,
        ignore_eos=True,
        stop_token_ids=job["stop_ids"],
        detokenize=False,
    )
    warm = [TokensPrompt(prompt_token_ids=job["prompts"][0][0])]
    model.generate(warm, params, use_tqdm=False)
    model.reset_prefix_cache()
    start, num_tokens = time.perf_counter(), 0
    for prompts in job["prompts"]:
        batch = [TokensPrompt(prompt_token_ids=ids) for ids in prompts]
        for answer in model.generate(batch, params, use_tqdm=False):
            num_tokens += len(answer.outputs[0].token_ids)
    print(json.dumps({"tokens": num_tokens, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(sys.argv[1])
