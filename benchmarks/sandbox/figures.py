"""From what was measured to the figures and the table that compares them with the goals. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.table import Table

STEPS = ("trivial", "heavy")
BASELINES = ("cold", "docker_run", "docker_exec")
SANDBOXES = ("namespace", "docker")
CONCURRENCY = (8, 32)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure and its goal. A quotient names what was measured above and below the line."""

    name: str
    at_least: float | None = None
    at_most: float | None = None
    quotient: tuple[str, str] | None = None

    @property
    def goal(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"

    def met(self, value: float) -> bool:
        """Whether the goal is reached."""
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is not None and value <= self.at_most


def _faster(name: str, step: str, than: str, sandbox: str, at_least: float) -> Figure:
    return Figure(name=name, at_least=at_least, quotient=(f"{step}_{than}_ms", f"{step}_{sandbox}_ms"))


def _more(num: int, at_least: float) -> Figure:
    quotient = (f"heavy{num}_namespace_per_s", f"heavy{num}_cold_per_s")
    return Figure(name=f"heavy{num}_vs_cold", at_least=at_least, quotient=quotient)


FIGURES = (
    _faster("heavy_vs_cold", "heavy", "cold", "namespace", 18),
    _faster("heavy_vs_docker_run", "heavy", "docker_run", "namespace", 22),
    _faster("heavy_vs_docker_exec", "heavy", "docker_exec", "namespace", 18),
    _faster("trivial_vs_cold", "trivial", "cold", "namespace", 3),
    _faster("trivial_vs_docker_run", "trivial", "docker_run", "namespace", 50),
    _faster("trivial_vs_docker_exec", "trivial", "docker_exec", "namespace", 12),
    _faster("docker_trivial_vs_run", "trivial", "docker_run", "docker", 40),
    _faster("docker_trivial_vs_exec", "trivial", "docker_exec", "docker", 9),
    _faster("docker_heavy_vs_run", "heavy", "docker_run", "docker", 20),
    _more(8, 25),
    _more(32, 30),
    Figure(name="idle_mb", at_most=0.1),
    Figure(name="total32_mb", at_most=300),
    Figure(name="create_close_ms", at_most=2),
    Figure(name="timeout_overshoot_s", at_most=0.25),
    Figure(name="failures", at_most=0),
    Figure(name="survivors", at_most=0),
)


@dataclass
class Measured:
    """Values by name, and for what could not be measured the reason by name."""

    values: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def count(self, name: str, number: float) -> None:
        """Add to a counter, which starts at 0."""
        self.values[name] = self.values.get(name, 0) + number

    def value(self, figure: Figure) -> float | None:
        """The figure's value; None where something that it needs is missing."""
        needed = [self.values.get(name) for name in figure.quotient or (figure.name,)]
        known = [value for value in needed if value is not None]
        if len(known) < len(needed):
            return None
        return known[0] / known[1] if figure.quotient else known[0]

    def reason(self, figure: Figure) -> str | None:
        """Why the figure has no value; a quotient names what is missing, whose row says why.

        None where nobody asked for it.
        """
        missing = [name for name in figure.quotient or () if name not in self.values]
        if figure.quotient and any(name in self.reasons for name in missing):
            return "no " + ", ".join(missing)
        return self.reasons.get(figure.name)


def flatten(measured: Measured, raw_names: tuple[str, ...]) -> dict[str, float | None]:
    """All figures, then all raw values; null where there is none."""
    figures = {figure.name: measured.value(figure) for figure in FIGURES}
    return figures | {name: measured.values.get(name) for name in raw_names}


def make_table(measured: Measured, raw_names: tuple[str, ...]) -> Table:
    """A row for each figure with its goal, then one for each raw value; none for what nobody asked for."""
    table = Table(title="Sandbox")
    for name in ("figure", "value", "goal", ""):
        table.add_column(name, justify="right" if name in ("value", "goal") else "left", overflow="fold")
    for figure in FIGURES:
        value, reason = measured.value(figure), measured.reason(figure)
        if value is not None:
            table.add_row(figure.name, _text(value), figure.goal, "" if figure.met(value) else "missed")
        elif reason is not None:
            table.add_row(figure.name, "–", figure.goal, reason)
    table.add_section()
    for name in raw_names:
        if name in measured.values:
            table.add_row(name, _text(measured.values[name]))
        elif name in measured.reasons:
            table.add_row(name, "–", "", measured.reasons[name])
    return table


def _text(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
