import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from rlplast.gpt.corpus import open_corpus
from rlplast.gpt.tokens import TOKENIZERS, Tokenizer
from tests.cli.commands import command
from tests.cli.runs import files, refused


def texts(folder: Path) -> Path:
    for i in range(10):
        path = folder / "texts" / f"{i}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"document {i}\n")
    return folder / "texts"


def test_a_folder_becomes_a_corpus(tmp_path: Path):
    out = tmp_path / "made" / "corpus"
    outcome = command("tokens", texts(tmp_path), "--out", out)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{out}: 108 tokens to train on, 12 to validate on (tokenizer bytes)\n"
    assert set(files(out)) == {"corpus.json", "train.bin", "validation.bin"}
    assert [path.name for path in out.parent.iterdir()] == ["corpus"]
    corpus = open_corpus("mine", out)
    assert corpus.validation.astype(np.uint8).tobytes() == b"document 9\n\0"
    about = json.loads((out / "corpus.json").read_text())
    assert (about["train_files"], about["validation_files"]) == (9, 1)


def test_a_signal_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stopped(text: str) -> np.ndarray:
        os.kill(os.getpid(), signal.SIGHUP)
        return np.zeros(len(text))

    made = Tokenizer("bytes", 256, 0, stopped)
    monkeypatch.setitem(TOKENIZERS, "bytes", lambda: made)
    folder, handler = texts(tmp_path), signal.getsignal(signal.SIGHUP)
    before = files(tmp_path)
    outcome = command("tokens", folder, "--out", tmp_path / "out")
    assert (outcome.code, outcome.out) == (130, "")
    assert "interrupted" in outcome.err
    assert files(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]
    assert signal.getsignal(signal.SIGHUP) == handler


def test_bad_usage_is_named(tmp_path: Path):
    folder = texts(tmp_path)
    before = files(tmp_path)
    for words, says in (
        ((folder, "--tokenizer", "gpt3"), "tokenizer = 'gpt3': did you mean 'gpt2'?"),
        ((folder, "--validation", "nowhere"), "--validation nowhere: allowed is a share"),
        ((tmp_path / "nowhere",), "nowhere does not exist: allowed are text files"),
    ):
        assert says in refused(command("tokens", *words, "--out", tmp_path / "out"))
    assert command("tokens", "--out", tmp_path / "out").code == 2
    assert command("tokens", folder).code == 2
    assert files(tmp_path) == before
