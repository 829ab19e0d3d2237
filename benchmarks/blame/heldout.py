"""The kinds of faults that are kept out of the development of any coach of this project.

    >>> {kind.fault.name: kind.signs for kind in HELD_OUT}["dsbench/header_only"]
    ('grade no_rows',)

Whoever works on a coach does not look at this folder, and runs the benchmark with `--only dev`: what a coach
was tuned on measures nothing.
"""

from __future__ import annotations

from benchmarks.blame.dsbench_kinds import ANALYST_KINDS, ENGINEER_KINDS, MODELER_KINDS
from benchmarks.blame.injections import DSBENCH_INJECTIONS, MATHCHAT_INJECTIONS
from benchmarks.blame.kinds import Kind
from benchmarks.blame.mathchat_kinds import EXECUTOR_KINDS, SOLVER_KINDS, VERIFIER_KINDS

HELD_OUT: tuple[Kind, ...] = (
    *ENGINEER_KINDS,
    *MODELER_KINDS,
    *ANALYST_KINDS,
    *DSBENCH_INJECTIONS,
    *SOLVER_KINDS,
    *EXECUTOR_KINDS,
    *VERIFIER_KINDS,
    *MATHCHAT_INJECTIONS,
)
"""By environment, in the order of the roles; injections last."""
