import threading
from types import SimpleNamespace

import pytest

from rlplast.core.checkpoint import background
from rlplast.core.checkpoint.background import Background, give_way, hurry


def fail() -> None:
    raise OSError("disk full")


def rest(times: int) -> None:
    for _ in range(times):
        give_way()


def test_job_runs_beside_the_caller() -> None:
    may_end, done = threading.Event(), []
    with Background() as jobs:
        jobs.start(lambda: done.append(may_end.wait(10)))
        assert jobs.busy
        jobs.check()  # does not wait
        assert not done
        may_end.set()
    assert done == [True] and not jobs.busy


def test_next_job_waits_for_the_one_before() -> None:
    order = []
    pause = threading.Event()
    with Background() as jobs:
        for number in range(20):
            jobs.start(lambda n=number: (pause.wait(0.001), order.append(n)))
    assert order == list(range(20))


@pytest.mark.parametrize("ask", ["wait", "start"])
def test_error_of_a_job_is_raised_once_at_the_next_call(ask: str) -> None:
    jobs, other = Background(), []
    jobs.start(fail)
    with pytest.raises(OSError, match="disk full"):
        jobs.wait() if ask == "wait" else jobs.start(lambda: other.append(1))
    assert not other
    jobs.wait()


def test_check_raises_as_soon_as_a_job_has_failed() -> None:
    jobs = Background()
    jobs.start(fail)
    with pytest.raises(OSError, match="disk full"):
        while True:
            jobs.check()


def test_block_ends_with_the_error_of_its_job() -> None:
    with pytest.raises(OSError, match="disk full"), Background() as jobs:
        jobs.start(fail)


def test_error_of_the_block_comes_before_that_of_its_job() -> None:
    jobs = Background()
    with pytest.raises(KeyError), jobs:
        jobs.start(fail)
        raise KeyError
    jobs.wait()  # it has been told, or hidden, once and for all


def test_job_rests_in_proportion_to_its_work_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Read after each rest and, from the second on, before it.
    clock = iter([100.0, 100.001, 200.0, 200.002, 300.0, 310.0, 400.0])
    monkeypatch.setattr(background, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    rests: list[float] = []

    class Hurry(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            rests.append(timeout)
            return self.is_set()

    def job() -> None:
        monkeypatch.setattr(threading.current_thread(), "hurry", Hurry())
        rest(4)

    with Background() as jobs:
        jobs.start(job)
    assert rests == pytest.approx([0, 0.004, 0.008, background._LONGEST])


def test_job_that_somebody_waits_for_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_REST", 1e9)
    monkeypatch.setattr(background, "_LONGEST", 1e9)
    with Background() as jobs:
        jobs.start(lambda: rest(3))


def test_job_that_somebody_needs_a_part_of_rests_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "_REST", 1e9)
    monkeypatch.setattr(background, "_LONGEST", 1e9)
    done = threading.Event()
    jobs = Background()
    jobs.start(lambda: (rest(3), done.set())[0])
    hurry()
    assert done.wait(10)
    jobs.wait()


def test_nobody_but_a_job_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_REST", 1e9)
    monkeypatch.setattr(background, "_LONGEST", 1e9)
    rest(3)
