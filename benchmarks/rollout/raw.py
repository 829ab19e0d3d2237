"""vLLM itself on given prompts, in a process of its own: `python -m benchmarks.rollout.raw JOB.json`.

Prints tokens, seconds as JSON. The prompts of each agent are one call of `LLM.generate`, one agent after the
other, as a team needs them; of each as many tokens are sampled as the job says.
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

    def sample(asked: list[tuple[list[int], int]]) -> int:
        params = [
            SamplingParams(
                temperature=job["temperature"],
                max_tokens=count,
                logprobs=0,
                ignore_eos=True,
                detokenize=False,
            )
            for _, count in asked
        ]
        batch = [TokensPrompt(prompt_token_ids=ids) for ids, _ in asked]
        answers = model.generate(batch, params, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in answers)

    sample(job["prompts"][0][:1])
    model.reset_prefix_cache()
    start = time.perf_counter()
    num_tokens = sum(sample(asked) for asked in job["prompts"])
    print(json.dumps({"tokens": num_tokens, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(sys.argv[1])
