"""What a coached run saw, as training data for others: `export RUN --format sft | dpo`, and the command line.

sft : well-scored actions, and the coach's corrections of the others, as `messages` (Hugging Face, TRL).
dpo : two actions of one agent on exactly the same prompt with different final scores, and actions beside
    their corrections, as `prompt`, `chosen` and `rejected` in TRL's conversational form.

Neither shows an action as good that was cut: trainers append a stop token to what they read.

One JSON-lines file an agent, and metadata.json. Agents' text is data: nothing of it is interpreted.
`--format hf` exports weights: `export_hf.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from mappa_envs.actions import leaves_block_open
from mappa_envs.errors import ConfigError, DataError, UnavailableError
from mappa_envs.types import Message, StopReason, Turn
from mappa_train.arguments import add_step
from mappa_train.checkpoint import RunFolder
from mappa_train.files import atomic_file, disk_errors, write_atomically
from mappa_train.keeping import pick_step
from mappa_train.report import all_episodes

Format = Literal["sft", "dpo"]
FORMATS: tuple[str, ...] = get_args(Format)
SFT_MIN_SCORE = 7.0
CORRECTION_SCORE = 10.0
"""For the score that a correction does not have: `datasets` refuses a column that is empty in one file."""
MAX_NAME_BYTES = 200
"""Of an agent whose file is written: file systems take 255, with endings."""
_FILE_NAME = re.compile(r"\w[\w.-]*")

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Example:
    """One action on record; `score` is the final one, None if it has none."""

    step: int
    episode: int
    task_id: str
    task_type: str
    turn: Turn

    @property
    def score(self) -> float | None:
        return self.turn.final_score

    @property
    def is_cut(self) -> bool:
        """Whether it is a part of an action only. Where that is not on record, an open block tells."""
        known = self.turn.truncated
        return leaves_block_open(self.turn.action) if known is None else known

    @property
    def correction(self) -> str | None:
        """What the coach would have done instead, if it said something else than was done."""
        text = self.turn.score.correction if self.turn.score else None
        return text if text and text.strip() and text != self.turn.action else None


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written: the folder, and the number of rows by agent."""

    folder: Path
    rows: dict[str, int] = field(default_factory=dict)


def export(
    run: Path,
    kind: str,
    *,
    out: Path | None = None,
    min_score: float | None = None,
    split: str = "train",
) -> Exported:
    """Write the files of a run; the same run gives the same bytes.

    Parameters
    ----------
    out : the folder to write; default RUN/export-<kind>. Its files of an earlier export are replaced.
    min_score : least final score of an action that is shown as good; default 7 for sft, 0 for dpo.
    split : of which tasks. Whoever trains on val or test can no longer measure on them.

    Raises `ConfigError` for an unknown format or a senseless score, `DataError` where there is nothing to
    export.
    """
    if kind not in FORMATS:
        raise ConfigError(f"--format {kind}: unknown; the formats are {', '.join((*FORMATS, 'hf'))}")
    if min_score is None:
        min_score = SFT_MIN_SCORE if kind == "sft" else 0.0
    if not 0 <= min_score <= 10:
        raise ConfigError(f"--min-score {min_score:g}: scores are from 0 to 10")
    folder = out or run / f"export-{kind}"
    _check_folder(folder, run)
    agents = _by_agent(_examples(run, split))
    make = sft_rows if kind == "sft" else dpo_rows
    rows = {agent: list(make(examples, min_score)) for agent, examples in agents.items()}
    if not any(rows.values()):
        raise DataError(_nothing(run, kind, min_score))
    facts = {"run": run.resolve().name, "format": kind, "split": split, "min_score": min_score}
    try:
        with disk_errors(folder, "free some space, then export again", "choose another folder with --out"):
            _write(folder, rows, facts)
    except OSError as error:
        raise UnavailableError(
            f"--out {folder}: cannot be written ({error.strerror}); choose another folder"
        ) from error
    return Exported(folder=folder, rows={agent: len(mine) for agent, mine in rows.items()})


def _check_folder(folder: Path, run: Path) -> None:
    """Raise `ConfigError` where the files cannot go there."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise ConfigError(f"--out {folder}: is no folder; one file an agent is written, into a folder")
    if os.path.isdir(folder) and folder.samefile(run):
        raise ConfigError(f"--out {folder}: is the run itself; choose a folder of its own")


def _examples(run: Path, split: str) -> Iterator[Example]:
    others: set[str] = set()
    found = False
    for step, index, episode in all_episodes(run):
        if episode.split != split:
            others.add(episode.split)
        elif episode.stop_reason is not StopReason.INFRA:
            found = True
            for turn in episode.turns:
                yield Example(
                    step=step,
                    episode=index,
                    task_id=episode.task_id,
                    task_type=episode.task_type,
                    turn=turn,
                )
    if not found:
        there = f"; there are some of {', '.join(sorted(others))}" if others else ""
        raise DataError(f"{run}: it has no episodes of {split} tasks{there}")


def _by_agent(examples: Iterable[Example]) -> dict[str, list[Example]]:
    agents: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        name = example.turn.agent
        if not _FILE_NAME.fullmatch(name) or len(name.encode()) > MAX_NAME_BYTES:
            raise DataError(
                f"agent {name[:80]!r}: not the name of a file; letters, digits, _, - and . are, up to "
                f"{MAX_NAME_BYTES} bytes"
            )
        agents[name].append(example)
    return dict(sorted(agents.items()))


def sft_rows(examples: Iterable[Example], min_score: float) -> Iterator[Row]:
    """`messages` of the prompt and a good, whole action: the agent's own, else its correction.

    `score` is that of the agent's action. What would stand twice stands once, with its first score.
    """
    seen: set[str] = set()
    for item in examples:
        good = item.score is not None and item.score >= min_score and not item.is_cut
        answer = item.turn.action if good else item.correction
        if answer is None or not answer.strip():
            continue
        messages = [*_messages(item.turn.messages), _answer(answer)]
        key = json.dumps(messages)
        if key not in seen:
            seen.add(key)
            yield {
                "messages": messages,
                **_facts(item),
                "score": item.score,
                "source": "action" if good else "correction",
            }


def dpo_rows(examples: Sequence[Example], min_score: float) -> Iterator[Row]:
    """Pairs of actions on the same prompt: the best with the worst, the second best with the second worst, …

    An action that was sampled more than once counts once, with its mean score; one that was cut is left out.
    An action with a correction is paired with that, too; `chosen_score` is `CORRECTION_SCORE` then.
    """
    prompts: dict[tuple[Message, ...], dict[str, list[Example]]] = {}
    for item in examples:
        prompts.setdefault(item.turn.messages, {}).setdefault(item.turn.action, []).append(item)
    for actions in prompts.values():
        whole = [same for same in actions.values() if not all(item.is_cut for item in same)]
        scored = [(score, same[0]) for same in whole if (score := _mean_score(same)) is not None]
        ranked = sorted(scored, key=lambda pair: -pair[0])
        for (high, good), (low, bad) in zip(ranked, reversed(ranked), strict=True):
            if high <= low:
                break  # the middle is reached
            if high >= min_score:
                yield _pair(good, good.turn.action, bad, (high, low), "scores")
        for same in actions.values():
            mean = _mean_score(same)
            for item in same:
                if item.correction is not None and mean is not None:
                    yield _pair(item, item.correction, item, (CORRECTION_SCORE, mean), "correction")
                    break  # one correction of an action is enough


def _mean_score(same: Sequence[Example]) -> float | None:
    scores = [item.score for item in same if item.score is not None]
    return math.fsum(scores) / len(scores) if scores else None


def _pair(good: Example, chosen: str, bad: Example, scores: tuple[float, float], source: str) -> Row:
    return {
        "prompt": _messages(bad.turn.messages),
        "chosen": [_answer(chosen)],
        "rejected": [_answer(bad.turn.action)],
        **_facts(good),
        "chosen_score": scores[0],
        "rejected_score": scores[1],
        "source": source,
    }


def _messages(messages: Iterable[Message]) -> list[dict[str, str]]:
    return [{"role": item.role, "content": item.content} for item in messages]


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _facts(item: Example) -> Row:
    return {
        "agent": item.turn.agent,
        "task_id": item.task_id,
        "task_type": item.task_type,
        "step": item.step,
        "episode": item.episode,
        "turn": item.turn.index,
    }


def _nothing(run: Path, kind: str, min_score: float) -> str:
    if kind == "sft":
        return (
            f"{run}: nothing to export: no action has a score of {min_score:g} or more and was not cut by "
            "the length limit, and no coach gave a correction; lower --min-score, or train with more "
            "--max-new-tokens"
        )
    return (
        f"{run}: nothing to export: no two whole actions on the same prompt have different scores, the "
        f"better one at least {min_score:g}, and no coach gave a correction; train with more "
        "--samples-per-task"
    )


def _write(folder: Path, rows: dict[str, list[Row]], facts: Row) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for agent, mine in rows.items():
        path = folder / f"{agent}.jsonl"
        if not mine:
            path.unlink(missing_ok=True)  # of an earlier export; loaders refuse an empty file
            continue
        with atomic_file(path) as file:
            for row in mine:
                # All in ASCII: some readers take other characters of a text for the end of its line.
                file.write(json.dumps({**row, "run": facts["run"]}, allow_nan=False).encode() + b"\n")
    counts = {"rows": {agent: len(mine) for agent, mine in rows.items()}}
    write_atomically(folder / "metadata.json", (json.dumps(facts | counts, indent=1) + "\n").encode())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `export`."""
    parser.add_argument(
        "--format",
        required=True,
        metavar="{" + ",".join((*FORMATS, "hf")) + "}",
        help="sft: good actions as `messages`. dpo: pairs of a better and a worse one on the same prompt. "
        "hf: each agent's weights, for transformers, peft and vLLM",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where to write; default RUN/export-<format>, for hf a folder of the step in it",
    )
    parser.add_argument(
        "--min-score",
        type=float,
        metavar="S",
        help="least score, 0-10, of an action that is shown as good; default 7 for sft, 0 for dpo. Higher is "
        "cleaner and less",
    )
    parser.add_argument(
        "--split",
        choices=("train", "val", "test"),
        help="export episodes on these tasks; default train. Who trains on others cannot measure on them",
    )
    hf = parser.add_argument_group("for --format hf")
    add_step(hf)
    hf.add_argument(
        "--merged",
        action="store_true",
        help="a whole model an agent instead of an adapter: larger, loads without peft",
    )
    hf.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of a whole model; default float32: exactly the policy. bfloat16 is half as large",
    )


def run_command(run: Path, options: argparse.Namespace) -> int:
    """Export, and say what was written."""
    _check_idle(options)
    if options.format == "hf":
        folder = RunFolder.open(run)
        step = pick_step(folder, options.step)
        from mappa_train import export_hf  # with torch, which takes seconds

        return export_hf.run_command(folder, step, options)
    split = options.split or "train"
    done = export(run, options.format, out=options.out, min_score=options.min_score, split=split)
    for agent, count in done.rows.items():
        print(f"{agent}: {count} row(s)" + (f" in {done.folder / agent}.jsonl" if count else ", no file"))
    print(f"metadata: {done.folder / 'metadata.json'}")
    return 0


def _check_idle(options: argparse.Namespace) -> None:
    """Raise `ConfigError` for an option of the other formats."""
    names = ("min_score", "split") if options.format == "hf" else ("step", "merged", "dtype")
    for name in names:
        value = getattr(options, name)
        if value is not None and value is not False:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag}: does nothing with --format {options.format}; leave it out")
