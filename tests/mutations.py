"""Break the product in 59 known ways, one at a time, and see whether the tests notice.

    python tests/mutations.py           # all: about half an hour
    python tests/mutations.py 3 17      # these alone

Run it by hand after tests were moved, merged or deleted. Each row of the table is made in a copy of
the checkout, in a temporary folder. Its tests run there until the first one fails, which then has
to pass without the change. The exit code is 1 if a change survived, or if a row does not fit the
checkout any more: its text has to be in the file once, and its paths have to hold tests.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "runs", "site", "build", "dist")

# File below rlplast/; tests that notice, below tests/, and options of pytest; text; replacement.
# fmt: off
ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("agents/replay.py", "agents/test_replay.py",
     "| (row + steps < head)", "| (row + steps <= head)"),
    ("agents/replay.py", "agents/test_replay.py",
     "np.where(terminated, 0, self._gammas[steps])", "np.where(terminated, 0, self._gammas[-1])"),
    ("agents/replay.py", "agents/test_replay.py agents/test_replay_files.py",
     "for rng in (self._rng, self._again)],", "for rng in (self._rng, self._rng)],"),
    ("agents/losses.py", "agents/test_dqn.py",
     "best = q_online_next.argmax(", "best = q_target_next.argmax("),
    ("agents/dqn.py", "agents/test_dqn.py",
     "self.clock.env_steps // every - before // every", "(self.clock.env_steps - before) // every"),
    ("agents/sac.py", "agents/test_sac.py agents/test_sac_hooks.py",
     "(self.clock.updates + 1) % self.config.agent.actor_every",
     "self.clock.updates % self.config.agent.actor_every"),
    ("agents/ppo.py", "agents/test_ppo.py",
     "+= agent.gamma * self._value(obs)", "+= self._value(obs)"),
    ("agents/ppo.py", "agents/test_ppo.py",
     '"minibatches", first)', '"minibatches", self.clock.updates)'),
    ("agents/rollout.py", "agents/test_ppo_parity.py",
     "goes_on * np.float32(decay), np", "np.full_like(goes_on, decay * gamma), np"),
    ("agents/running_statistics.py", "agents/test_running_statistics.py",
     "(self.count * n / total)) / total", "(n / total)) / total"),
    ("agents/categorical.py", "agents/test_categorical.py",
     "(steps + 0.5 * gauss)", "(steps + 0.5)"),
    ("core/method/schedule.py", "core/method/test_schedule.py",
     "= self._due_by(int(self.start.value) - 1)", "= self._due_by(int(self.start.value))"),
    ("core/method/schedule.py", "core/method/test_schedule.py",
     "0 < horizon[time.unit] <= time.value", "0 < horizon[time.unit] < time.value"),
    ("core/method/condition.py", "core/method/test_condition.py",
     ">= self.cooldown.value", "> self.cooldown.value"),
    ("core/method/firing.py", "core/method/test_firing.py agents/test_dqn_hooks.py",
     'if policy == "network" and (p.within is None or', 'if policy == "network" and (True or'),
    ("core/method/penalties.py", "core/method/test_penalties.py methods/test_terms.py",
     '{"sum": self.sum} | {rule.key: rule.states for rule in rules}', '{"sum": self.sum}'),
    ("core/method/hooks.py", "core/method/test_hooks.py methods/test_c_chain.py",
     'key=lambda h: h.method.key == "penalties")', 'key=lambda h: h.method.key != "penalties")'),
    ("core/method/inside.py", "core/method/test_hooks.py methods/test_swr.py",
     "((factors - 1) * norms).square()", "(factors * norms).square()"),
    ("core/network/optim_state.py", "optimizers/test_state.py -k upgd",
     "if name != DRAWN:", "if name:"),
    ("core/network/units.py", "core/network/test_units.py",
     "per_unit.repeat_interleave(self.repeat)", "per_unit.repeat(self.repeat)"),
    ("core/rng.py", "core/test_rng.py",
     'torch.set_rng_state(state["model"])', "pass"),
    ("methods/cbp.py", "methods/test_cbp.py",
     "corrected = 1 - self.decay**age_now", "corrected = 1 - self.decay ** (age_now + 1)"),
    ("methods/cbp.py", "methods/test_cbp.py",
     "outgoing_first=True, moments=True)", "outgoing_first=True)"),
    ("methods/snr.py", "methods/test_snr.py",
     "age, age + h.shape[0])", "age, age + 1)"),
    ("methods/redo.py", "methods/test_redo.py methods/test_in_agents.py",
     '= ("touched", "leave")', '= ("keep", "leave")'),
    ("methods/fire.py", "methods/test_fire.py",
     "scale = fire_scale(shape, groups)", "scale = fire_scale(shape)"),
    ("methods/swr.py", "methods/test_swr_branches.py",
     "torch.stack([root, 1 / root], 1)", "torch.stack([root, root], 1)"),
    ("methods/c_chain.py", "methods/test_c_chain.py",
     "self._strength(context, state, moved.detach())", "self._strength(context, state, moved)"),
    ("methods/plasticity_injection.py", "methods/test_plasticity_injection.py",
     "self._frozen(self.old, x) + change", "self._frozen(self.old, x) - change"),
    ("methods/lifecycle_tick.py", "methods/test_lifecycle_tick.py",
     "awake & (life <= 0)", "awake & (life < 0)"),
    ("methods/rigl.py", "methods/test_rigl.py",
     "kept = mask & new", "kept = new"),
    ("methods/drm.py", "methods/test_drm.py",
     "alpha = kept[block.spec.member].to(now)", "alpha = kept[None].to(now)"),
    ("methods/sigreg.py", "methods/test_sigreg.py",
     "keys = context.seed, context.clock.updates, place", "keys = context.seed, 0, place"),
    ("metrics/features.py", "metrics/test_features.py",
     "activity <= threshold * activity.mean()", "activity < threshold * activity.mean()"),
    ("metrics/calibration.py", "metrics/test_calibration.py",
     ".ceil().nan_to_num().long().sub(1)", ".nan_to_num().long()"),
    ("metrics/outputs.py", "metrics/test_outputs.py",
     "count = (length > 0).sum()", "count = len(length)"),
    ("optimizers/adam_o.py", "optimizers/test_adam_o.py",
     'gradient * (group["lr"] * group["isometry"])', 'gradient * group["isometry"]'),
    ("optimizers/config.py", "optimizers/test_updater.py",
     "passed = sum(done >= m * length", "passed = sum(done > m * length"),
    ("optimizers/schedule_free.py", "optimizers/test_schedule_free.py",
     "largest.fill_(max(float(largest), *", "largest.fill_(max(0.0, *"),
    ("optimizers/upgd.py", "optimizers/test_upgd.py",
     'derive_seed(self.seed, "noise", int(drawn))', 'derive_seed(self.seed, "noise")'),
    ("training/loop.py", "agents/test_blocks.py -k single",
     "min([count, *(due - updates for due in self._due())])", "count"),
    ("training/loop.py", "training/test_loop_when.py",
     '{k: v for k, v in self._unread.items() if k in self.hooks.reads()}', "{}"),
    ("training/checkpoint.py", "training/test_checkpoint.py",
     'startswith("step-")][:keep]', 'startswith("step-")][-keep:]'),
    ("training/checkpoint.py", "training/test_checkpoint.py",
     "(other / SENTINEL).unlink(missing_ok=True)", "pass"),
    ("supervised/trainer.py", "supervised/test_trainer.py",
     "loss * (len(targets) / size)", "loss / count"),
    ("supervised/trainer.py", "supervised/test_trainer.py supervised/test_tasks.py",
     '"data", "epoch", *key)', '"data", "epoch", here.epoch)'),
    ("supervised/streams.py", "supervised/test_tasks.py supervised/test_streams.py",
     'return train, train if config.name == "random_labels" else test', "return train, test"),
    ("gpt/corpus.py", "gpt/test_corpus.py",
     "(len(corpus.train) - context)", "(len(corpus.train) - context - 1)"),
    ("gpt/trainer.py", "gpt/test_trainer.py",
     "[0].double() * len(part)", "[0].double()"),
    ("envs/joined.py", "envs/test_joined.py envs/test_shifts.py",
     "self._late[:, ended] = 0", "pass"),
    ("envs/vector.py", "envs/test_vector.py",
     'self._return[:] = state["episode_return"]', "pass"),
    ("envs/control.py", "envs/test_control.py",
     "min(most, self._limit - self.steps * self._repeat)", "most"),
    ("adapters/penalising.py", "adapters/test_sb3_penalties.py",
     "gradient if old is None else old.add_(gradient)", "gradient"),
    ("study/plan.py", "study/test_plan.py",
     'if row in left and not row_implements(hook, "install"):', "if row in left:"),
    ("study/claims.py", "study/test_claims.py study/test_work.py",
     'ends.count("failed") > self.retries', 'ends.count("failed") >= self.retries'),
    ("report/estimators.py", "report/test_estimators.py",
     "v / (own.shape[-1] - 1)", "v / own.shape[-1]"),
    ("report/estimators.py", "report/test_statistics.py",
     "np.maximum.accumulate(values[order] * factors)", "values[order] * factors"),
    ("run/api.py", "test_resume.py -k extend",
     "config.percentages_of or config.total", "config.total"),
    ("cli/finish.py", "cli/test_train.py -k never",
     'nearest = max if side == "above" else min', 'nearest = min if side == "above" else max'),
)
# fmt: on


def run_tests(copy: Path, paths: Sequence[str]) -> tuple[int, str]:
    """Return the exit code of pytest, and the first test or file of tests that failed."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths]
    found = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", found.stdout, re.MULTILINE)
    return found.returncode, failed[1] if failed else ""


def outcome(copy: Path, row: tuple[str, str, str, str]) -> str:
    """Return what a row's tests say of its change; "caught" begins what is as it should be."""
    name, tests, old, new = row
    file = copy / "rlplast" / name
    paths = [f"tests/{p}" if p.endswith(".py") or "/" in p else p for p in shlex.split(tests)]
    text = file.read_text() if file.is_file() else ""
    if text.count(old) != 1:
        return f"ROW DOES NOT FIT: its text is there {text.count(old)} times"
    if absent := [p for p in paths if p.startswith("tests/") and not (copy / p).exists()]:
        return f"ROW DOES NOT FIT: no {', '.join(absent)}"
    try:
        _write(file, text.replace(old, new))
        code, failed = run_tests(copy, paths)
    finally:
        _write(file, text)
    if code == 0:
        return "SURVIVED"
    if code not in (1, 2):  # 2 is an error while tests are imported
        return f"ROW DOES NOT FIT: pytest ends with {code}"
    if run_tests(copy, [failed] if failed and code == 1 else paths)[0] != 0:
        return f"ROW DOES NOT FIT: {failed or tests} fails without the change too"
    return f"caught by {failed}"


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)  # of the same second


def main(numbers: Sequence[int]) -> int:
    """Try the rows with these numbers, from 1 on, or all; return the exit code."""
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT))
        for number in numbers or range(1, len(ROWS) + 1):
            started = time.monotonic()
            said = outcome(copy, ROWS[number - 1])
            bad += not said.startswith("caught")
            seconds = time.monotonic() - started
            print(f"{number:2} {ROWS[number - 1][0]}: {said} ({seconds:.0f} s)", flush=True)
    count = len(numbers or ROWS)
    print(f"{count - bad} of {count} caught")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main([int(number) for number in sys.argv[1:]]))
