#!/usr/bin/env bash
# Makes a virtual environment in which HumanoidBench's tasks run with this project.
#
#   bash scripts/install_humanoid_bench.sh             clones the repository into the environment
#   bash scripts/install_humanoid_bench.sh CHECKOUT    uses a clone you have, which has to stay there
#
# HumanoidBench needs MuJoCo 3.1.6 (newer ones lack an attribute it reads), hence an environment of
# its own; what else its setup.py pins is neither needed nor installed. Runs again without harm.
#
#   VENV=PATH      where to make it; default .venv-humanoid-bench beside .venv
#   PYTHON=PATH    a Python 3.11 or 3.12; MuJoCo 3.1.6 has no wheels for newer ones
#   TORCH=...      what to ask pip for; default torch==2.13.0, of which a CPU build counts too: for
#                  that one set PIP_EXTRA_INDEX_URL as the Makefile says, or install it into VENV first
#   REVISION=...   the commit to clone; default the one that was tested
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$ROOT/.venv-humanoid-bench}
TORCH=${TORCH:-torch==2.13.0}
REPOSITORY=https://github.com/carlosferrazza/humanoid-bench
REVISION=${REVISION:-791405f5eacf879adbc99105adb3fee73f5a49fc}

say() { printf '==> %s\n' "$*"; }
fail() {
    printf 'error: %s\n' "$@" >&2
    exit 1
}

works() { "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; }

make_environment() {
    if [[ -x $VENV/bin/python ]]; then
        works "$VENV/bin/python" || fail "$VENV is not of Python 3.11 or 3.12: remove it, or set VENV"
        say "using the environment $VENV"
        return
    fi
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
        if works "$candidate"; then
            say "making $VENV with $candidate"
            "$candidate" -m venv "$VENV"
            echo '*' >"$VENV/.gitignore"
            return
        fi
    done
    fail "none of '${PYTHON:-python3.11 python3.12 python3}' is a Python 3.11 or 3.12 with the venv module:" \
        "install one or name it: PYTHON=/path/to/python3.11 bash scripts/install_humanoid_bench.sh"
}

get_checkout() { # sets CHECKOUT
    if [[ -n ${CHECKOUT:=} ]]; then
        [[ -d $CHECKOUT ]] || fail "there is no folder $CHECKOUT"
        CHECKOUT=$(cd "$CHECKOUT" && pwd)
    else
        CHECKOUT=$VENV/src/humanoid-bench
        if [[ ! -e $CHECKOUT ]]; then
            command -v git >/dev/null || fail "git is not installed: apt-get install git, or name a CHECKOUT"
            say "cloning $REPOSITORY, about 200 MB"
            rm -rf "$CHECKOUT.part"
            git init -q "$CHECKOUT.part"
            git -C "$CHECKOUT.part" fetch -q --depth 1 "$REPOSITORY" "$REVISION" ||
                fail "cannot fetch $REVISION: clone $REPOSITORY yourself and name it: $0 CHECKOUT"
            git -C "$CHECKOUT.part" checkout -q FETCH_HEAD
            mv "$CHECKOUT.part" "$CHECKOUT" # only a whole clone is found by the next run
        fi
    fi
    [[ -f $CHECKOUT/setup.py && -f $CHECKOUT/humanoid_bench/env.py ]] ||
        fail "$CHECKOUT is not a checkout of $REPOSITORY: it has no setup.py and humanoid_bench/env.py"
    say "using the checkout $CHECKOUT"
}

install_packages() {
    local pip=("$VENV/bin/python" -m pip --disable-pip-version-check install --quiet)
    local constraints=$VENV/constraints.txt
    # The project's own versions, less those of the simulators, which other environments need newer.
    grep -viE '^(torch|mujoco|dm[-_]control|jax|jaxlib)==' "$ROOT/constraints.txt" >"$constraints"

    say "installing $TORCH"
    "${pip[@]}" -c "$constraints" "$TORCH"
    say "installing this project, in place, and what its tests need"
    "${pip[@]}" -c "$constraints" -e "$ROOT" pytest hypothesis
    say "installing MuJoCo 3.1.6 and what HumanoidBench imports"
    # imageio is imported by gymnasium's MuJoCo part; jax by a module of HumanoidBench that the
    # tasks import but do not use. Of dm_control only the reward functions are used: without its
    # dependencies there is nothing to compile.
    "${pip[@]}" -c "$constraints" mujoco==3.1.6 imageio jax
    "${pip[@]}" --no-deps dm_control==1.0.20
    # In place, because its setup.py leaves out the tasks and the assets.
    "${pip[@]}" --no-deps -e "$CHECKOUT"
}

check() {
    say "stepping h1-walk-v0"
    (cd "$ROOT" && "$VENV/bin/python" - <<'PYTHON'
import time

import numpy as np

from rlplast import envs

rng = np.random.default_rng(0)
env = envs.make("humanoid_bench/h1-walk-v0", rng, action_repeat=2)
obs = env.reset()
print(f"    observation {obs.shape} {obs.dtype}, actions {env.spec.action_dim} in [-1, 1], success from {env.spec.success_return}")
steps, total, lengths, since = 500, 0.0, [0], time.perf_counter()
for action in rng.uniform(-1, 1, (steps, env.spec.action_dim)):
    obs, reward, terminated, truncated = env.step(action)
    total += reward
    lengths[-1] += 1
    if terminated or truncated:
        obs = env.reset()
        lengths.append(0)
seconds = time.perf_counter() - since
print(f"    {steps} random steps: {len(lengths) - 1} falls, {total / steps:.3f} a step, {2 * steps / seconds:.0f} control steps/s")
try:
    print(f"    a picture: {env.render().shape}")
except envs.MissingPackage as error:
    print(f"    no pictures (training needs none): {error}")
PYTHON
    ) || fail "HumanoidBench does not run in $VENV; what it said is above"
}

(($# <= 1)) || fail "usage: bash scripts/install_humanoid_bench.sh [CHECKOUT]"
[[ ${1:-} != -* ]] || fail "usage: bash scripts/install_humanoid_bench.sh [CHECKOUT]; no options"
CHECKOUT=${1:-}
make_environment
get_checkout
install_packages
check
say "done: use $VENV/bin/rlplast and $VENV/bin/python where a config names humanoid_bench/..."
