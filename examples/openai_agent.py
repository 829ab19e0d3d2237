"""A model behind an OpenAI-compatible endpoint plays every seat. No torch; needs the extra `coach`.

python examples/openai_agent.py --model openai/Qwen/Qwen3-4B --base-url http://localhost:8000/v1 --tasks 4

`--model` is a name of litellm's: "openai/NAME" with `--base-url` for a server of your own (vLLM, llama.cpp,
Ollama), or "gemini/…", "anthropic/…" without it. Keys come from the environment, as litellm documents.
"""

import argparse
import os

from rich import print as show

import mappa_envs

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else importing it asks a server for prices
import litellm

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--env", default="dsbench-v0", help=", ".join(mappa_envs.list_envs()))
parser.add_argument("--model", required=True)
parser.add_argument("--base-url", help="of your own server; it ends in /v1")
parser.add_argument("--tasks", type=int, help="how many tasks of the test split; default: each once")
parser.add_argument("--max-new-tokens", type=int, default=2048, help="for each message")
options = parser.parse_args()


async def policy(agent: str, messages: list[dict[str, str]]) -> str:
    """A coroutine function: many episodes wait for the server at the same time."""
    answer = await litellm.acompletion(
        model=options.model,
        api_base=options.base_url,
        # A server of one's own asks for no key, but the client wants one.
        api_key="none" if options.base_url and "OPENAI_API_KEY" not in os.environ else None,
        messages=messages,
        max_tokens=options.max_new_tokens,
        num_retries=3,
        timeout=600,
    )
    return answer.choices[0].message.content or ""


result = mappa_envs.evaluate(options.env, policy, split="test", episodes=options.tasks, num_concurrent=8)
show(result.table)
