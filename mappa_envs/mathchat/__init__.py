"""MathChat: a problem solver, a code executor and a verifier answer a mathematical problem."""

from mappa_envs.mathchat.grading import Verdict, grade, judge

__all__ = ["Verdict", "grade", "judge"]
