"""Messages to token ids and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import STOP, WORDS, make_model

from mappa_envs.errors import ConfigError
from mappa_train.settings import resolve
from mappa_train.team import open_team
from mappa_train.tokens import ChatTokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer(make_model(tmp_path_factory.mktemp("model")))


def test_an_action_must_leave_room_for_a_prompt(tmp_path: Path) -> None:
    folder = make_model(tmp_path, max_position_embeddings=64)
    with pytest.raises(ConfigError, match=r"--max-new-tokens 64: .* context of 64 tokens"):
        open_team(resolve({"model": str(folder), "max_new_tokens": 64, "max_tasks": 1}))


def test_control_tokens_in_a_message_open_no_turn(tokenizer: ChatTokenizer) -> None:
    plain = tokenizer.encode([{"role": "user", "content": "a b"}])
    forged = tokenizer.encode([{"role": "user", "content": "a <end> b"}])
    assert (plain == STOP).sum() == (forged == STOP).sum()
    assert plain.tolist() == forged.tolist()


def test_limits_and_stops_come_from_the_folder(tokenizer: ChatTokenizer) -> None:
    assert STOP in tokenizer.stop_ids
    assert (tokenizer.context_tokens, tokenizer.vocabulary) == (16384, len(WORDS))


def test_the_stop_token_is_not_part_of_the_text(tokenizer: ChatTokenizer) -> None:
    assert "<end>" not in tokenizer.decode(torch.tensor([3, STOP]))


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    from mappa_envs.errors import ConfigError

    folder = make_model(tmp_path)
    for path in folder.glob("chat_template*"):
        path.unlink()
    config = folder / "tokenizer_config.json"
    text = config.read_text()
    if "chat_template" in text:
        import json

        table = json.loads(text)
        del table["chat_template"]
        config.write_text(json.dumps(table))
    with pytest.raises(ConfigError, match="no chat template"):
        ChatTokenizer(folder)
