import threading

import pytest

from rlplast.training.background import Background


def fail() -> None:
    raise OSError("disk full")


def test_jobs_run_beside_the_caller_one_after_the_other() -> None:
    may_end, done = threading.Event(), []
    with Background() as jobs:
        jobs.start(lambda: done.append(may_end.wait(10)))
        assert jobs.busy
        jobs.check()  # does not wait
        assert not done
        may_end.set()
        for number in range(20):
            jobs.start(lambda n=number: (threading.Event().wait(0.001), done.append(n)))
    assert done == [True, *range(20)] and not jobs.busy


def test_error_of_a_job_is_raised_once_at_the_next_call_or_the_end_of_the_block() -> None:
    def check(jobs: Background) -> None:
        while True:
            jobs.check()

    other: list[int] = []
    asks = (lambda jobs: jobs.wait(), lambda jobs: jobs.start(lambda: other.append(1)), check)
    for ask in asks:
        jobs = Background()
        jobs.start(fail)
        with pytest.raises(OSError, match="disk full"):
            ask(jobs)
        assert not other
        jobs.wait()
    with pytest.raises(OSError, match="disk full"), Background() as jobs:
        jobs.start(fail)
    with pytest.raises(KeyError), jobs:  # the block's own comes first
        jobs.start(fail)
        raise KeyError
    jobs.wait()  # it has been told, or hidden, once and for all
