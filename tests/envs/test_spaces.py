import pytest
from gymnasium.utils.env_checker import data_equivalence

from mappa_envs.spaces import FreeText, prompt_space, state_space


def test_contains_any_text_up_to_its_length() -> None:
    space = FreeText(10)
    assert all(text in space for text in ("", "é你🙂\0\x1b", "\ud800", "a" * 10))
    assert "a" * 11 not in space
    assert 3 not in space
    assert None not in space


def test_samples_are_seeded_and_inside() -> None:
    one, two = FreeText(200, seed=3), FreeText(200, seed=3)
    samples = [one.sample() for _ in range(50)]
    assert samples == [two.sample(None) for _ in range(50)]
    assert all(sample in one for sample in samples)
    assert len(set(samples)) > 10


def test_equality_and_json() -> None:
    assert FreeText(5) == FreeText(5)
    assert FreeText(5) != FreeText(6)
    assert FreeText().from_jsonable(FreeText().to_jsonable(["a", "é"])) == ["a", "é"]
    assert not FreeText().is_np_flattenable
    assert data_equivalence(FreeText(5), FreeText(5))


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
def test_observations_and_states_can_be_sampled() -> None:
    for space in (prompt_space(), state_space()):
        space.seed(0)
        assert all(space.sample() in space for _ in range(20))
