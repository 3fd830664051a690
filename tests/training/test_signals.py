"""Signals that ask a run to stop: which ones, what a second one does, what a hang-up is not."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from rlplast.core.errors import Interrupted
from rlplast.training.signals import noted_signals

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of signals are afterwards as they were before."""
    before = [signal.getsignal(own) for own in ALL]
    yield
    for own, handler in zip(ALL, before, strict=True):
        signal.signal(own, handler)


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_one_is_noted_and_handlers_are_put_back():
    before = [signal.getsignal(own) for own in ALL]
    for number in ALL:
        with noted_signals() as noted:
            send(number)
            assert noted == [number]
        assert [signal.getsignal(own) for own in ALL] == before
    with pytest.raises(KeyboardInterrupt), noted_signals():  # no second signal
        raise KeyboardInterrupt


def test_others_only_ask_however_often_they_come_and_a_hang_up_stays_ignored_under_nohup():
    with noted_signals() as noted:
        send(signal.SIGHUP, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM)
        assert len(noted) == 5
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with noted_signals() as noted:
        send(signal.SIGHUP)
        assert noted == []
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_after_one_ends_a_wait_and_a_third_would_end_the_process(first: signal.Signals):
    number = signal.SIGINT
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=number.name):
        with noted_signals():
            send(first)
            try:
                send(number)
                time.sleep(600)
            except Exception:
                pytest.fail("whoever mends errors has no say")
            finally:
                assert signal.getsignal(number) == signal.SIG_DFL
    assert signal.getsignal(number) == before
