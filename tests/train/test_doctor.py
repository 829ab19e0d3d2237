from __future__ import annotations

import pytest

from mappa_train import cli, doctor


def test_doctor_finds_nothing_or_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = doctor.Check(name="x", ok=True, message="fine [b]")
    bad = doctor.Check(name="y", ok=False, message="do this")
    monkeypatch.setattr(doctor, "checks", lambda config: iter([good]))
    assert cli.main(["doctor"]) == 0
    assert "fine [b]" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "checks", lambda config: iter([good, bad]))
    assert cli.main(["doctor"]) == 1
    assert "1 thing(s) to fix" in capsys.readouterr().out
