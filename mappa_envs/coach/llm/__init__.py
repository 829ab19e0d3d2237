"""A language model as the coach.

coach.py        asks, reads, repairs once, gives up
instructions.py the words that the model coaches by
prompt.py       the evidence as a prompt; fence.py keeps what agents wrote apart
parse.py        an answer as a verdict; hindsight.py, one about a whole episode
client.py       calls through litellm, retries, prices; limits.py, pace and budget; cache.py, answers kept
"""

from mappa_envs.coach.llm.coach import LLMCoach

__all__ = ["LLMCoach"]
