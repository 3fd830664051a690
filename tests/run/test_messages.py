"""One page of what `rlplast` says of wrong inputs, for people to read.

After a change of messages, write it anew: ``python -m tests.run.test_messages``.
"""

import shlex
from pathlib import Path

import pytest

from tests.cli.commands import command
from tests.cli.runs import PROGRESS

PAGE = Path(__file__).with_name("messages.txt")


def page(text: str) -> str:
    """The commands of a page, each with the last line that it ends with, which begins alike."""
    commands = [line for line in text.splitlines() if not line.startswith(" ")]
    found = []
    for line in commands:
        outcome = command(*shlex.split(line))
        assert (outcome.code, outcome.out) == (2, ""), line
        said = [row for row in outcome.err.splitlines() if not PROGRESS.match(row)]
        assert len(said) == 1 or said[0].startswith("usage: "), (line, said)
        assert said[-1].startswith("rlplast"), (line, said)
        found += [line, f"    {said[-1]}"]
    return "\n".join(found) + "\n"


def test_messages_are_those_that_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert page(PAGE.read_text()) == PAGE.read_text()
    assert list(tmp_path.iterdir()) == []


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
