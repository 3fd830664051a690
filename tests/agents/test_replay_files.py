import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.replay import Replay
from rlplast.core.errors import ConfigError, DamagedFile
from tests.agents.replay_episodes import Episodes, assert_equal, copy, fill, make

SEGMENT = 8


def used_elsewhere(seed: int, **options: Any) -> Replay:
    """A replay full of something else, to be loaded into."""
    replay = make(seed=seed, **options)
    episodes = Episodes(options.get("num_envs", 1), seed, action_dim=options.get("action_dim"))
    replay.start(episodes.start())
    fill(replay, episodes, 70)
    return replay


def restored(folder: Path, state: dict[str, Any], **options: Any) -> Replay:
    replay = used_elsewhere(seed=99, **options)
    replay.load(folder, json.loads(json.dumps(state)))
    return replay


@pytest.fixture(autouse=True)
def no_disk_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk would take most of the time; one test looks at what is synced."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("seed", range(25))
def test_restored_replay_goes_on_like_the_uninterrupted_one(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    n_step, frame_stack, num_envs = (int(rng.integers(1, high)) for high in (4, 5, 4))
    options = {
        "num_envs": num_envs,
        "rows": n_step + frame_stack + int(rng.integers(0, 30)),
        "n_step": n_step,
        "frame_stack": frame_stack,
        "segment_rows": int(rng.integers(1, 10)),
        "action_dim": int(rng.integers(1, 5)) if seed % 2 else None,
    }
    replay = make(**options)
    episodes = Episodes(num_envs, seed, action_dim=options["action_dim"])
    twin, previous = replay, None
    replay.start(episodes.start())
    for save in range(6):
        for _ in range(int(rng.integers(0, 25))):
            transition = episodes.step()
            replay.add(*transition)
            if twin is not replay:
                twin.add(*transition)
            assert twin.size == replay.size
            if replay.size:
                assert_equal(twin.sample(), replay.sample())
        folder = tmp_path / f"save{save}"
        replay.save(folder, previous)
        twin, previous = restored(folder, replay.state_dict(), **options), folder


def saved(folder: Path, steps: int, **options: Any) -> tuple[Replay, Episodes]:
    """A replay of two environments, rings of four segments and no episode ends, and its save."""
    replay = make(rows=4 * SEGMENT, num_envs=2, segment_rows=SEGMENT, **options)
    episodes = Episodes(2, seed=0, p_terminated=0, p_truncated=0)
    replay.start(episodes.start())
    fill(replay, episodes, steps)
    replay.save(folder)
    return replay, episodes


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("steps", "more", "unchanged"),
    [
        (20, 7, {0, 1}),  # two full segments and a part
        (40, 3, {0, 2, 3}),  # wrapped around; 2 and 3 still hold rows of the first lap
        (38, 1, {1, 2, 3}),  # the next row to be written is the first of segment 1
        (20, 0, {0, 1, 2}),
    ],
)
def test_unchanged_segments_are_hard_linked_and_others_written(
    steps: int, more: int, unchanged: set[int], tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    replay, episodes = saved(old, steps)
    fill(replay, episodes, more)
    replay.save(new, previous=old)
    shared = {name for name in names(new) if (new / name).stat().st_nlink == 2}
    for name in shared:
        assert (old / name).stat().st_ino == (new / name).stat().st_ino
    parts = itertools.product(range(2), unchanged, ("frames", "records"))
    stems = {f"env{env:04d}-segment{index:05d}-{kind}" for env, index, kind in parts}
    assert {re.sub(r"rows\d+-|\.npy", "", name) for name in shared} == stems


def test_partly_filled_segment_stores_only_its_rows(tmp_path: Path) -> None:
    saved(tmp_path, steps=20)
    lengths = [len(np.load(path)) for path in sorted(tmp_path.glob("env0000*-frames.npy"))]
    assert lengths == [SEGMENT, SEGMENT, 5]


def test_segment_that_ends_at_the_head_is_written_again(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    replay, episodes = saved(old, steps=SEGMENT - 1)
    fill(replay, episodes, 1)  # gives the last row of the first segment its action
    replay.save(new, previous=old)
    assert not names(old) & names(new)


def test_later_saves_leave_earlier_ones_as_they_were(tmp_path: Path) -> None:
    folders = [tmp_path / "0", tmp_path / "1", tmp_path / "2"]
    replay, episodes = saved(folders[0], steps=30)
    state = replay.state_dict()
    expected = copy(replay.sample())
    for previous, folder in itertools.pairwise(folders):
        fill(replay, episodes, 20)
        replay.save(folder, previous)
    again = restored(folders[0], state, rows=4 * SEGMENT, num_envs=2, segment_rows=SEGMENT)
    for a, b in zip(expected, copy(again.sample()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_segments_are_copied_where_links_are_impossible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError("no links here")

    old, new = tmp_path / "old", tmp_path / "new"
    replay, _ = saved(old, steps=20)
    monkeypatch.setattr(os, "link", refuse)
    replay.save(new, previous=old)
    assert all(path.stat().st_nlink == 1 for path in new.iterdir())
    again = restored(new, replay.state_dict(), rows=4 * SEGMENT, num_envs=2, segment_rows=SEGMENT)
    assert_equal(again.sample(), replay.sample())


def test_files_and_folder_are_synced_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    saved(tmp_path, steps=20)
    assert synced == {path.stat().st_ino for path in [tmp_path, *tmp_path.iterdir()]}


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def overwrite(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 not an array")


def drop_a_row(path: Path) -> None:
    np.save(path, np.load(path)[1:])


def other_type(path: Path) -> None:
    np.save(path, np.zeros(len(np.load(path)), "float64"))


def pickled(path: Path) -> None:
    np.save(path, np.array([None] * len(np.load(path))), allow_pickle=True)


@pytest.mark.parametrize("kind", ["frames", "records"])
@pytest.mark.parametrize(
    "damage", [Path.unlink, cut_short, empty, overwrite, drop_a_row, other_type, pickled]
)
def test_damaged_segment_is_refused_by_name(damage: Any, kind: str, tmp_path: Path) -> None:
    replay, _ = saved(tmp_path, steps=20)
    victim = sorted(tmp_path.glob(f"env0001-*-{kind}.npy"))[1]
    damage(victim)
    with pytest.raises(DamagedFile, match=rf"{victim.name}.*expected a .*\(8,"):
        replay.load(tmp_path, replay.state_dict())


def test_damaged_segment_of_an_earlier_save_is_not_carried_on(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    replay, _ = saved(old, steps=20)
    cut_short(sorted(old.iterdir())[0])
    replay.save(new, previous=old)
    again = restored(new, replay.state_dict(), rows=4 * SEGMENT, num_envs=2, segment_rows=SEGMENT)
    assert_equal(again.sample(), replay.sample())


def test_folder_with_files_is_not_saved_into(tmp_path: Path) -> None:
    replay, _ = saved(tmp_path, steps=20)
    with pytest.raises(ConfigError, match="is not empty"):
        replay.save(tmp_path)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"rows": 33}, "rows_per_env = 33"),
        ({"frame_stack": 2}, "frame_stack = 2"),
        ({"segment_rows": 4}, "segment_rows = 4"),
        ({"action_dim": 3}, "action_dim = 3: the saved replay has None"),
        ({"obs_dtype": "int64"}, "obs_dtype = <i8"),
        ({"rng": np.random.Generator(np.random.SFC64(0))}, "bit_generator = SFC64"),
    ],
)
def test_memory_of_another_layout_is_not_loaded(
    options: dict[str, Any], key: str, tmp_path: Path
) -> None:
    replay, _ = saved(tmp_path, steps=20)
    layout = {"rows": 4 * SEGMENT, "num_envs": 2, "segment_rows": SEGMENT}
    with pytest.raises(ConfigError, match=key):
        make(**(layout | options)).load(tmp_path, replay.state_dict())


def test_discrete_memory_saved_before_there_were_continuous_ones_still_loads(
    tmp_path: Path,
) -> None:
    replay, _ = saved(tmp_path, steps=20)
    state = replay.state_dict()
    del state["layout"]["action_dim"]
    records = np.load(sorted(tmp_path.glob("*-records.npy"))[0])
    names_and_types = [("action", "<i4"), ("reward", "<f4"), ("discount", "<f4"), ("age", "|u1")]
    assert records.dtype.descr == [*names_and_types, ("sampleable", "|b1")]
    again = restored(tmp_path, state, rows=4 * SEGMENT, num_envs=2, segment_rows=SEGMENT)
    assert_equal(again.sample(), replay.sample())
