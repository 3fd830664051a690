"""A run's config made small, by rule: the same run in seconds, on two cores and without its data.

- `shrunk`: config → smaller config; `make_start`: trains the run that it starts from.
- `sources`: what a run reads from outside, all of which a small one does without.

The rules:

1. **Length.** An agent makes 32 updates in each task of a sequence, after 24 random steps or on
   rollouts of 16 steps, a classifier 8 epochs over all its phases, a GPT 8 updates in each phase.
   Of many phases 2 are left (where classes come in groups the least divisor of their number, so
   that groups stay equal).
2. **Times** in counts shrink as the run does, unit by unit: ``at: 250k env_steps`` of 500k is
   the middle of the short run too. None becomes 0, a period longer than one update stays so, and
   percentages stay as they are. A condition holds whenever its value is measured.
3. **Intervals.** Log lines every quarter of the run; metrics, evaluations and checkpoints every
   half.
4. **Sizes.** Batches, replay, probes, evaluations, contexts and episodes are cut to `CAPS`;
   a micro-batch is half a batch. Networks become narrow: those that have a key for their width,
   and timm's by `rlplast.run.narrow`. Vision transformers keep 2 blocks. A method's own ``params``
   stay.
5. **Data.** Published images become ``random`` ones, which keep their size (those of Hugging Face
   get CIFAR-10's), and corpora in folders become ``embedded/stdlib``. A run to start from is looked
   for in `folder`. Corrupted images and weights of others are left out.
6. **Machine.** One thread of the CPU, nothing compiled, bf16 for fp16.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from rlplast import envs
from rlplast.core.clock import Time
from rlplast.gpt.corpus import PREFIX
from rlplast.run import api
from rlplast.run.config_file import read_config
from rlplast.run.length import length
from rlplast.run.narrow import narrow_version
from rlplast.supervised.data import Published
from rlplast.supervised.models import MODELS
from rlplast.training.config import EvaluateConfig, RunConfig

__all__ = ["CAPS", "UPDATES", "make_start", "shrunk", "sources"]

UPDATES, RANDOM_STEPS, EPOCHS, PHASES = 32, 24, 8, 2
ROLLOUT_STEPS = 16
UPDATES_OF_PHASE = 8  # of a GPT
EPISODE = 50  # env_steps

# The most that a key may be, where a config has it.
CAPS = {
    "threads": 1,
    "metrics.batch_size": 16,
    "evaluate.episodes": 1,
    "evaluate.steps": EPISODE,
    "evaluate.batches": 1,
    "checkpoint.keep": 2,
    "env.num_envs": 4,
    "env.options.pixels": 32,  # that DrQ's convolutions still fit
    "env.workers": 0,
    "agent.batch_size": 8,
    "agent.buffer_size": 1000,
    "agent.initial_updates": UPDATES,
    "agent.actor_width": 16,
    "agent.critic_width": 16,
    "stream.images": 100,
    "model.context": 32,
}
BATCH = {"supervised": 64, "gpt": 4}
_WIDTH, _TOKEN_WIDTH, _HIDDEN = 4, 12, 16  # of convolutions, of vision transformers, of layers
_DEPTH = 2  # of vision transformers
_HEAD_WIDTH = 4  # of a GPT
_ROWS = ("hooks", "penalties")  # whose rows have schedules
_INTERVALS = {"log": "25%", "metrics": "50%", "evaluate": "50%", "checkpoint": "50%"}
_HELD_OUT = 0.8  # of digits, which are there
EXAMPLES = {"bit_flipping": 100, "curve": 100, "random": 200}  # of sets that are computed
_ANYTHING = 1e38  # every value is on one side of it, and configs allow no larger one


def shrunk(config: RunConfig, folder: Path) -> RunConfig:
    """Return a config made small by the rules above.

    Args:
        config: a checked config.
        folder: where `make_start` makes the run that it starts from, if it starts from one.

    Raises:
        ConfigError: if what comes out is no config.
    """
    data = dataclasses.asdict(config)
    _cap(data)
    _narrow(data)
    _shorten(data, config)
    _put_data(data, folder)
    data |= {"device": "cpu", "percentages_of": None}
    data["log"]["to"] = []
    for key, every in _INTERVALS.items():
        data[key]["every"] = data[key]["every"] and every
    data["checkpoint"]["keep_every"] = None
    before = length(config)
    if config.whole_time() is not None:
        data["total"] = "auto"  # both of the phases left
    after = length(read_config(data | {key: [] for key in _ROWS}))
    ratios = {unit: after[unit] / count for unit, count in before.items() if unit in after}
    _rescale(data, _Scale(ratios, after))
    if isinstance(getattr(config, "replay_ratio", None), list):
        data["replay_ratio"] = _rescaled_ratios(config, ratios.get("env_steps", 1.0))
    return read_config(data)


def _cap(data: dict[str, Any]) -> None:
    """Cut what `CAPS` names, and leave the machine out of it."""
    for dotted, most in CAPS.items():
        *parents, last = dotted.split(".")
        part = data
        for key in parents:
            part = part.get(key) or {}
        if isinstance(part.get(last), int):
            part[last] = min(part[last], most)
    if data["evaluate"].get("steps") is not None:  # then episodes are not counted
        data["evaluate"]["episodes"] = EvaluateConfig.episodes
    if "batch_size" in data:
        data["batch_size"] = min(data["batch_size"], BATCH.get(data["kind"], 64))
    if data.get("micro_batch"):
        data["micro_batch"] = max(1, data["batch_size"] // 2)
    for part in (data, data.get("agent", {})):
        if "accelerate" in part:
            part["accelerate"] = "off"
        if part.get("precision") == "fp16":
            part["precision"] = "bf16"


def _narrow(data: dict[str, Any]) -> None:
    """Give a network the least width that its kind makes sense with."""
    model = data.get("model", {})
    if data["kind"] == "gpt":
        model["width"] = min(model["width"], _HEAD_WIDTH * model["heads"])
    elif data["kind"] == "supervised":
        reads = MODELS[model["name"]].reads if model["name"] in MODELS else ()
        if "width" in reads:
            model["width"] = _TOKEN_WIDTH if "depth" in reads else _WIDTH
        if "depth" in reads:
            model["depth"] = _DEPTH
        if model["hidden"] is None and model["name"] == "vgg16":
            model["hidden"] = [_HIDDEN, _HIDDEN]
        model["pretrained"] = False
        narrow = narrow_version(model["timm"] or model["name"])
        if narrow is not None:
            model |= {"name": narrow, "timm": None, "stride": None}
    part = data.get("agent", model)
    if part.get("convs"):
        part["convs"] = [[min(width, _WIDTH), *rest] for width, *rest in part["convs"]]
    if part.get("hidden"):
        part["hidden"] = [min(size, _HIDDEN) for size in part["hidden"]]


def _shorten(data: dict[str, Any], config: Any) -> None:
    """Shorten the run; where phases say how long it is, `shrunk` sets `total`."""
    if data["kind"] == "gpt":
        data["phases"] = [dict(p, updates=UPDATES_OF_PHASE) for p in data["phases"][:PHASES]]
    elif data["kind"] == "supervised":
        stream = data["stream"]
        count = config.stream.num_phases()
        if stream["phases"] is not None or count > PHASES:
            by_class = stream["name"] == "class_incremental"
            count = next(n for n in range(PHASES, count + 1) if not by_class or count % n == 0)
            stream["phases"] = count
        epochs = stream["epochs"]
        longest = max(epochs) if isinstance(epochs, list) else epochs
        stream["epochs"] = min(longest, max(1, EPOCHS // count))
    elif "env" in data:
        env = data["env"]
        env_steps = _env_steps(data, config)
        unit = config.total_time().unit  # an episode has at least one env_step
        data["total"] = f"{UPDATES if unit == 'updates' else env_steps} {unit}"
        if env.get("steps_per_task") is not None:  # of a sequence of tasks
            each = -(-env_steps // env["num_envs"]) * env["num_envs"]
            several = env["tasks"] is not None or len(env["sequence"]) > 1
            env |= {"steps_per_task": each, "cycles": 1 if several else PHASES}
            env |= {"tasks": env["tasks"] and PHASES, "sequence": env["sequence"][:3]}
            env["id"] = type(config)().env.id if env["sequence"] else env["id"]
            data["total"] = "auto"
        with suppress(ValueError, ImportError):  # not all environments have a limit to set
            options = env["options"] | {"max_episode_steps": EPISODE}
            ids = [e if isinstance(e, str) else e["id"] for e in env["sequence"] or [env["id"]]]
            limits = [envs.spec(i, **env["options"]).max_episode_steps for i in ids]
            for env_id in ids:
                envs.spec(env_id, **options)
            if any(limit is None or limit > EPISODE for limit in limits):
                env["options"] = options
    else:
        data["total"] = str(Time(UPDATES, config.total_time().unit))


def _env_steps(data: dict[str, Any], config: Any) -> int:
    """Shorten what comes before an agent's updates, and return the env_steps that owe enough."""
    num_envs, agent = data["env"]["num_envs"], data["agent"]
    if "replay_ratio" not in data:
        agent["rollout_steps"] = min(agent["rollout_steps"], ROLLOUT_STEPS)
        whole = num_envs * agent["rollout_steps"]
        agent["batch_size"] = math.gcd(agent["batch_size"], whole)
        agent["epochs"] = min(agent["epochs"], EPOCHS)
        each = agent["epochs"] * (whole // agent["batch_size"])
        return whole * math.ceil(UPDATES / each)
    first = max(num_envs * (agent["n_step"] + 1), RANDOM_STEPS)
    agent["initial_steps"] = first
    least = min(ratio for _, ratio in config.update_plan().ratios)
    if isinstance(data["replay_ratio"], list):
        data["replay_ratio"] = least  # until `_rescale`, which needs the length
    return first + max(1, math.ceil(UPDATES / least))


def _put_data(data: dict[str, Any], folder: Path) -> None:
    """Name data that need no file."""
    if data["kind"] == "supervised":
        images, name = data["data"], data["data"]["name"]
        if name == "digits":
            images["test"] = max(images["test"], _HELD_OUT)
        elif name == "huggingface" or name in get_args(Published):
            like = "cifar10" if name == "huggingface" else name
            images |= {"name": "random", "like": like, "folder": None}
        if images["name"] in EXAMPLES:
            images["examples"] = EXAMPLES[images["name"]]
        images["corrupted"] = None
        if data["checkpoint"]["best"] == "mca":
            data["checkpoint"]["best"] = "accuracy"
    elif data["kind"] == "gpt":
        for name, source in data["corpora"].items():
            if not source.startswith(PREFIX):
                data["corpora"][name] = f"{PREFIX}stdlib"
        start = data["start"]
        start["huggingface"] = None
        if start["run"] is not None:
            key = json.dumps([data["model"], data["corpora"], data["layers"]], sort_keys=True)
            digest = hashlib.sha256(key.encode()).hexdigest()[:8]
            start["run"] = str(folder / f"start-{digest}")
            if start["checkpoint"].startswith(("step-", "best-")):
                start["checkpoint"] = "newest"


def make_start(config: Any) -> None:
    """Train the run that a small one starts from for a moment, if it is not there yet.

    It has a best checkpoint and a newest one.

    Raises:
        ConfigError: if it cannot be built.
        OSError: if a folder cannot be written.
    """
    if config.kind != "gpt" or config.start.run is None or Path(config.start.run).exists():
        return
    before = dataclasses.replace(
        config.to_resume(),
        hooks=[],
        penalties=[],
        phases=[{**config.phases[0], "updates": 2}],
        total="auto",
        checkpoint=dataclasses.replace(config.checkpoint, best="loss"),
    )
    api.train(before, config.start.run)


def sources(config: Any) -> dict[str, str]:
    """Return what a run reads from outside, by key: folders, and names on the Hugging Face hub."""
    found: dict[str, str | None] = {}
    if config.kind == "supervised":
        data = config.data
        found = {"data.folder": data.folder, "data.corrupted": data.corrupted}
        found["data.huggingface.path"] = data.huggingface.path
        found["model.pretrained"] = "true" if config.model.pretrained else None
    elif config.kind == "gpt":
        own = {name: s for name, s in config.corpora.items() if not s.startswith(PREFIX)}
        found = {f"corpora.{name}": source for name, source in own.items()}
        found |= {"start.run": config.start.run, "start.huggingface": config.start.huggingface}
    return {key: source for key, source in found.items() if source}


@dataclasses.dataclass(frozen=True)
class _Scale:
    """From times of the long run to times of the short one.

    Attributes:
        ratios: by unit, counts of the short run per count of the long one.
        ends: by unit, counts at the end of the short run.
    """

    ratios: Mapping[str, float]
    ends: Mapping[str, float]

    def period(self, value: Any) -> str:
        """Return a period, or a length."""
        time = Time.parse(value)
        if time.unit == "%":
            return str(time)
        least = 2 if time.unit == "updates" else 1  # every update is another kind of hook
        count = max(round(time.value * self.ratios.get(time.unit, 1)), min(time.value, least))
        return str(Time(int(count), time.unit))

    def point(self, value: Any) -> str:
        """Return a point before the end of the run."""
        time = Time.parse(self.period(value))
        if time.unit == "%":
            return str(time)
        last = self.ends.get(time.unit, math.inf) - 1
        return str(Time(int(min(time.value, last)), time.unit))


def _rescale(data: dict[str, Any], scale: _Scale) -> None:
    """Bring what counts in updates, env_steps and so on to the length of the short run."""
    if "env" in data:
        every = data["agent"].get("target_every")
        if every:
            ratio = scale.ratios.get("env_steps", 1.0)
            data["agent"]["target_every"] = max(1, round(every * ratio))
    for row in (row for key in _ROWS for row in data[key]):
        for key in row.keys() & {"every", "until", "from", "at", "when"}:
            if row[key] is not None:
                row[key] = _rescaled(key, row[key], scale)
        if row.get("first") is not None:  # which is at most `every`
            row["first"] = row["every"]


def _rescaled_ratios(config: Any, ratio: float) -> list[dict[str, Any]]:
    """Return a list of replay ratios, each of which begins later than the one before."""
    rows: list[dict[str, Any]] = []
    last = -1
    for start, value in config.update_plan().ratios:
        last = max(last + 1, round(start * ratio))
        rows.append({"from": f"{last} env_steps", "value": value})
    return rows


def _rescaled(key: str, value: Any, scale: _Scale) -> Any:
    """Return a value of a schedule's key."""
    if key == "when":
        side = "above" if value.get("above") is not None else "below"
        when = {**value, side: -_ANYTHING if side == "above" else _ANYTHING}
        if when.get("cooldown") is not None:
            when["cooldown"] = scale.period(when["cooldown"])
        return when
    if key in ("every", "until"):
        return scale.period(value)
    return [scale.point(each) for each in value] if isinstance(value, list) else scale.point(value)
