import threading
import time

import pytest

from rlplast.core import background as background_module
from rlplast.core.background import Background, give_way


def fail() -> None:
    raise OSError("disk full")


def test_job_runs_beside_the_caller() -> None:
    may_end, done = threading.Event(), []
    with Background() as background:
        background.start(lambda: done.append(may_end.wait(10)))
        assert background.busy
        background.check()  # does not wait
        assert not done
        may_end.set()
    assert done == [True] and not background.busy


def test_next_job_waits_for_the_one_before() -> None:
    order = []
    pause = threading.Event()
    with Background() as background:
        for number in range(20):
            background.start(lambda n=number: (pause.wait(0.001), order.append(n)))
    assert order == list(range(20))


@pytest.mark.parametrize("ask", ["wait", "start"])
def test_error_of_a_job_is_raised_once_at_the_next_call(ask: str) -> None:
    background, other = Background(), []
    background.start(fail)
    with pytest.raises(OSError, match="disk full"):
        background.wait() if ask == "wait" else background.start(lambda: other.append(1))
    assert not other
    background.wait()


def test_check_raises_as_soon_as_a_job_has_failed() -> None:
    background = Background()
    background.start(fail)
    with pytest.raises(OSError, match="disk full"):
        while True:
            background.check()


def test_block_ends_with_the_error_of_its_job() -> None:
    with pytest.raises(OSError, match="disk full"), Background() as background:
        background.start(fail)


def test_error_of_the_block_comes_before_that_of_its_job() -> None:
    background = Background()
    with pytest.raises(KeyError), background:
        background.start(fail)
        raise KeyError
    background.wait()  # it has been told, or hidden, once and for all


def test_job_rests_in_proportion_to_its_work_until_somebody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background_module, "_LONGEST", 10.0)
    rested: list[float] = []

    def job() -> None:
        give_way()  # nothing was done before
        for _ in range(3):
            time.sleep(0.02)
            before = time.perf_counter()
            give_way()
            rested.append(time.perf_counter() - before)

    background = Background()
    background.start(job)
    while len(rested) < 1:
        time.sleep(0.001)
    background.wait()
    first, *others = rested
    assert first >= 0.02 * background_module._REST
    assert max(others[1:]) < 0.02  # once waited for, it hurries


def test_nobody_else_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "_REST", 1e9)
    monkeypatch.setattr(background_module, "_LONGEST", 1e9)
    give_way()
    give_way()
    with Background() as background:  # waits at once: no job of its own rests either
        background.start(lambda: (give_way(), give_way()))
