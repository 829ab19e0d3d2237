"""Problems that stand in a collection twice, word for word or nearly so.

Public collections overlap: of 32 problems in one well-known evaluation file, 18 stand in the training file
that is used with it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from mappa_envs.types import Task

NEAR = 0.75
"""The share of words in common from which two problems with the same numbers count as nearly the same."""

# A file's name begins a word or follows a drawing: looked for from each character of a long word, such as an
# inlined picture, it would take the square of its length.
_PICTURE = re.compile(
    r"\[asy\].*?(?:\[/asy\]|\Z)|(?:(?<!\S)|(?<=\[/asy\]))\S+\.(?:png|jpg|gif)\b", re.DOTALL | re.IGNORECASE
)
_SPACING = re.compile(
    r"\\(?:left|right|displaystyle|[dt](?=frac)|text|textbf|mathrm|mbox|[,;:!])(?![A-Za-z])"
)
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+|[-+*/^=<>!%]")


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Two tasks that are the same problem. `similarity` is the share of words in common, in [0, 1]."""

    first: Task
    second: Task
    kind: Literal["exact", "near"]
    similarity: float

    @property
    def leaks(self) -> bool:
        """The two stand in different splits: what is tested was trained on."""
        return self.first.split != self.second.split

    @property
    def message(self) -> str:
        """One line for a report."""
        where = (
            f"splits {self.first.split} and {self.second.split}" if self.leaks else f"both {self.first.split}"
        )
        return f"{self.kind}: {self.first.task_id} = {self.second.task_id} ({where}, {self.similarity:.0%})"


def find_overlaps(tasks: Sequence[Task]) -> list[Overlap]:
    """Every pair of the same problem: equal after normalizing, or with the same numbers and similar words.

    The numbers tell two problems of one make apart, which differ in nothing else; so a copy that writes
    "two" for 2 is not found. Pairs between splits come first.
    """
    groups: dict[tuple[str, ...], list[tuple[Task, str, frozenset[str]]]] = defaultdict(list)
    for task in tasks:
        text = normalized(task.prompt)
        words = text.split()
        numbers = tuple(sorted(word for word in words if word[0].isdigit()))
        groups[numbers].append((task, text, frozenset(words)))
    found = [overlap for group in groups.values() for overlap in _pairs(group)]
    return sorted(found, key=lambda pair: (not pair.leaks, pair.kind, -pair.similarity))


def normalized(prompt: str) -> str:
    """The problem as words, numbers and signs in lower case, without pictures, layout and punctuation."""
    text = _PICTURE.sub(" ", unicodedata.normalize("NFKC", prompt))
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", _SPACING.sub(" ", text))
    text = re.sub(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))", "", text)
    return " ".join(_WORD.findall(text.lower()))


def _pairs(group: Sequence[tuple[Task, str, frozenset[str]]]) -> Iterator[Overlap]:
    for (first, text, words), (second, other_text, other_words) in combinations(group, 2):
        if text == other_text:
            yield Overlap(first=first, second=second, kind="exact", similarity=1.0)
        elif min(len(words), len(other_words)) >= NEAR * max(len(words), len(other_words)):
            share = len(words & other_words) / len(words | other_words)
            if share >= NEAR:
                yield Overlap(first=first, second=second, kind="near", similarity=share)
