"""Reads a coach's answer. What is not plainly its own one verdict is no verdict.

A verdict is one JSON object that ends the answer:

    {"reason": "…", "score": 7, "blame": {"modeler_0": 1.0}, "correct": false, "correction": "…",
     "revisions": [{"turn": 0, "score": 4, "reason": "…"}]}

`reason` and `score` (a number in [0, 10]) must be there. Blame shares sum to 1, up to 0.02 of rounding; none,
or zeros only, blame nobody. Thinking before it, prose before it and a code fence around it are fine.
A second, different object that could be the verdict (it begins a line, or has one of `_KEYS`) is not: the
last could be an agent's, quoted.
Revisions are caps: they lower what earlier turns have, and never raise it.
Where there is no JSON at all and none could be demanded by schema, lines are read: prose, then `SCORE: 7` as
the last line, which may be followed by `BLAME: modeler_0=0.5, analyst_0=0.5`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mappa_envs.types import CoachScore, ScoreRevision

MAX_CHARS = 100_000
"""A longer answer is no verdict."""

ROUNDING = 0.02
"""How far shares may be from 1 in all."""

_KEYS = ("score", "reason", "correction", "revisions")
"""What tells a verdict, even one that an agent's words ended too early: those stand under such a key."""

_KEY = re.compile(rf"""["'](?:{"|".join(_KEYS)}|actions)["']\s*:""", re.IGNORECASE)
_START = re.compile(r"""\{(?:\s*["']|[ \t\r\n]*\})""")
"""The start of an object: what begins otherwise is none, and need not be tried."""
_LINE_START = re.compile(rf"^[^\S\n]*(?={_START.pattern})", re.MULTILINE)
_SCORE_LINE_START = re.compile(r"^[ \t*_#]*(?:PROCESS[_ ])?SCORE[ \t*_]*:", re.IGNORECASE | re.MULTILINE)
_THINK = re.compile(r"\s*<think(?:ing)?>", re.IGNORECASE)
_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THOUGHT_LINE = re.compile(rf"^[ \t]*{_THOUGHT.pattern}[ \t\r]*$", re.IGNORECASE | re.MULTILINE)
_TAIL = re.compile(r"\s*(```\s*)?\Z")
_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_SCORE_LINE = re.compile(
    rf"[\s*_#]*(?:PROCESS[_ ])?SCORE[\s*_]*:[\s*_]*({_NUMBER})(?:\s*/\s*10)?[\s*_.]*", re.IGNORECASE
)
_BLAME_LINE = re.compile(r"[\s*_#]*BLAME[\s*_]*:(.*)", re.IGNORECASE)


_MALFORMED = "a JSON object in the answer is malformed or incomplete"


class VerdictError(ValueError):
    """The answer cannot be used; the message says why, in words for the coach."""


def parse_verdict(text: str) -> CoachScore | None:
    """The verdict in a coach's answer on one action, or None. Never raises."""
    try:
        return read_verdict(text)
    except VerdictError:
        return None


def read_verdict(
    text: str,
    agents: Collection[str] | None = None,
    num_earlier: int | None = None,
    *,
    structured: bool = False,
) -> CoachScore:
    """The verdict on one action. Raises `VerdictError`.

    `agents` are those who can be blamed, `num_earlier` the number of turns whose score can be revised; None
    takes any. A `structured` answer was held to a JSON schema: lines in it are no verdict.
    """
    answer = _without_thinking(text)
    found = _final_object(answer, *_KEYS)
    if found is None:
        if structured:
            raise VerdictError('there is no JSON object with a "score" at the end of the answer')
        found = _read_lines(answer)
    return to_score(found, agents, num_earlier)


def read_actions(
    text: str, agents: Collection[str], num_actions: int
) -> list[Mapping[str, Any] | VerdictError]:
    """The verdicts of an answer on a whole episode, as objects still to be checked, one an action.

    Raises `VerdictError` when there is no list of verdicts at all.
    """
    found = _final_object(_without_thinking(text), "actions")
    listed = found.get("actions") if found else None
    if not isinstance(listed, list):
        raise VerdictError('there is no JSON object with a list of "actions" at the end of the answer')
    entries: dict[int, list[Any]] = {}
    for entry in listed:
        turn = _turn(entry, num_actions)
        if turn is None:
            raise VerdictError(f'every entry of "actions" needs a "turn" from 0 to {num_actions - 1}')
        entries.setdefault(turn, []).append(entry)
    read: list[Mapping[str, Any] | VerdictError] = []
    for turn in range(num_actions):
        given = entries.get(turn, [])
        if len(given) == 1:
            read.append(given[0])
        else:
            read.append(VerdictError(f"turn {turn} has {len(given)} verdicts instead of one"))
    return read


def to_score(found: Mapping[str, Any], agents: Collection[str] | None, num_earlier: int | None) -> CoachScore:
    """A checked verdict. Raises `VerdictError`."""
    reason = found.get("reason")
    if not isinstance(reason, str):
        raise VerdictError('"reason" must be a string')
    correct, correction = found.get("correct"), found.get("correction")
    if not (correct is None or isinstance(correct, bool)):
        raise VerdictError('"correct" must be true, false or null')
    if not (correction is None or isinstance(correction, str)):
        raise VerdictError('"correction" must be a string or null')
    return CoachScore(
        score=_score(found.get("score")),
        reason=reason.strip(),
        blame=_blame(found.get("blame"), agents),
        correct=correct,
        correction=correction or None,
        revisions=_revisions(found.get("revisions"), num_earlier),
    )


def read_shares(values: Sequence[Any], name: str) -> list[float]:
    """Shares of one thing that sum to 1. Raises `VerdictError`."""
    shares = [_share(value, f'"{name}"') for value in values]
    total = math.fsum(shares)
    if abs(total - 1) > ROUNDING:
        raise VerdictError(f'"{name}" must sum to 1 over all actions, and sums to {total:.3g}')
    return [share / total for share in shares]


def _score(value: Any) -> float:
    score = _number(value, '"score"')
    if not 0 <= score <= 10:
        raise VerdictError(f'"score" must be from 0 to 10, not {score:.3g}')
    return score


def _share(value: Any, name: str) -> float:
    share = _number(value, name)
    if not 0 <= share <= 1 + ROUNDING:
        raise VerdictError(f"{name} must be from 0 to 1, not {share:.3g}")
    return share


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise VerdictError(f"{name} must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise VerdictError(f"{name} must be a finite number")
    return number


def _blame(value: Any, agents: Collection[str] | None) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise VerdictError('"blame" must be an object of agents and their shares')
    shares = {name: _share(share, "a share of blame") for name, share in value.items()}
    blamed = {name: share for name, share in shares.items() if share}
    if agents is not None and not set(blamed) <= set(agents):
        raise VerdictError(f"only these agents can be blamed: {', '.join(agents)}")
    if not blamed:
        return {}
    total = math.fsum(blamed.values())
    if abs(total - 1) > ROUNDING:
        raise VerdictError(f"the shares of blame must sum to 1, and sum to {total:.3g}")
    return {name: share / total for name, share in blamed.items()}


def _revisions(value: Any, num_earlier: int | None) -> tuple[ScoreRevision, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise VerdictError('"revisions" must be a list')
    revisions: dict[int, ScoreRevision] = {}
    for entry in value:
        turn = _turn(entry, num_earlier)
        if turn is None or turn in revisions:
            raise VerdictError('each of "revisions" needs the "turn" of another earlier action')
        reason = entry.get("reason")
        if not isinstance(reason, str):
            raise VerdictError('each of "revisions" needs a "reason"')
        revisions[turn] = ScoreRevision(turn=turn, score=_score(entry.get("score")), reason=reason, cap=True)
    return tuple(revisions.values())


def _turn(entry: Any, below: int | None) -> int | None:
    """The entry's "turn", if that is an index below the limit."""
    turn = entry.get("turn") if isinstance(entry, dict) else None
    if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:
        return None
    return turn if below is None or turn < below else None


def _without_thinking(text: str) -> str:
    """The answer itself. Raises `VerdictError` where there is none.

    Thinking that was opened ends with the first `</think>`. Many chat templates open it in the prompt: then
    it ends with a line `</think>`, unless a verdict could stand before that, and quote the tag.
    """
    if len(text) > MAX_CHARS:
        raise VerdictError("the answer is far too long")
    opened = _THINK.match(text)
    closed = (_THOUGHT if opened else _THOUGHT_LINE).search(text)
    if opened and not closed:
        raise VerdictError("the thinking was never closed, so there is no answer")
    if not closed or (not opened and _could_judge(text[: closed.start()])):
        return text
    return text[closed.end() :]


def _could_judge(text: str) -> bool:
    """Whether the text could hold a verdict, or the beginning of one."""
    return any(pattern.search(text) for pattern in (_KEY, _LINE_START, _SCORE_LINE_START))


def _final_object(text: str, key: str, *others: str) -> dict[str, Any] | None:
    """The object with this key that ends the answer; None where nothing looks like one.

    Raises `VerdictError` where another could be the verdict: one that begins a line, or has one of the keys.
    It need not have them all, for a quotation in it may have ended it.
    """
    objects, rest = _objects(text)
    judges = any({key, *others} & found.keys() for found, _, _ in objects)
    if _KEY.search(rest) or (_KEY.search(text) and not judges):
        raise VerdictError(_MALFORMED)
    if not judges:
        return None
    last, last_start, end = objects[-1]
    on_lines = {found.end() for found in _LINE_START.finditer(text)}
    for found, start, _ in objects:
        if found != last and (start in on_lines or {key, *others} & found.keys()):
            raise VerdictError(
                "more than one object in the answer could be the verdict; give exactly one, and quote none"
            )
    if key not in last or not _TAIL.match(text, end) or last_start not in on_lines:
        raise VerdictError("the verdict must stand on lines of its own at the end of the answer")
    return last


def _objects(text: str) -> tuple[list[tuple[dict[str, Any], int, int]], str]:
    """The outermost JSON objects, each with its start and end, and all text outside them.

    Raises `VerdictError` for a broken one: what is quoted in it could pass for the verdict.
    """
    # Not strict: models break lines within strings, in code above all.
    decoder = json.JSONDecoder(strict=False, object_pairs_hook=_without_doubles, parse_constant=_refuse)
    objects: list[tuple[dict[str, Any], int, int]] = []
    rest, position = [], 0
    while opened := _START.search(text, position):
        start = opened.start()
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            raise VerdictError(_MALFORMED) from None
        objects.append((found, start, end))
        rest.append(text[position:start])
        position = end
    return objects, " ".join((*rest, text[position:]))


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _read_lines(text: str) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if line.strip()]
    blame = _BLAME_LINE.fullmatch(lines[-1]) if lines else None
    before = lines[:-1] if blame else lines
    scores = [found[1] for line in lines if (found := _SCORE_LINE.fullmatch(line))]
    last = _SCORE_LINE.fullmatch(before[-1]) if before else None
    if last is None:
        raise VerdictError("there is no verdict at the end of the answer")
    if len({float(score) for score in scores}) > 1:
        raise VerdictError("there is more than one verdict in the answer; give exactly one")
    return {
        "reason": "\n".join(before[:-1]).strip(),
        "score": float(last[1]),
        "blame": _blame_of_line(blame[1].strip(" \t*_.")) if blame else None,
    }


def _blame_of_line(words: str) -> dict[str, float]:
    if words.lower() in ("", "none", "nobody", "{}"):
        return {}
    shares: dict[str, float] = {}
    for pair in words.split(","):
        found = re.fullmatch(rf"\s*([\w-]+)\s*[=:]\s*({_NUMBER})\s*", pair)
        if found is None or found[1] in shares:
            raise VerdictError("the line of blame must read: BLAME: agent=share, agent=share")
        shares[found[1]] = float(found[2])
    return shares
