"""A slow twin of lifecycle networks: Algorithm 1 line by line, gradients and optimizers by hand.

A sleeping neuron's own row drifts under the optimizer here and comes back at revival, as the
paper says; rlplast holds it in place.
"""

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Fresh = Callable[[int, int], tuple[Array, float]]  # (neuron, revivals so far) -> new row, bias


class NaiveLifecycleLinear:
    """One layer; `fresh` gives what a reinitialised neuron wakes up with, else its memory."""

    def __init__(
        self,
        weight: Array,
        bias: Array,
        life_max: Array,
        recovery_max: Array,
        warmup: int,
        fresh: Fresh | None = None,
    ) -> None:
        n = len(bias)
        self.weight, self.bias = weight.copy(), bias.copy()
        self.weight_memory, self.bias_memory = weight.copy(), bias.copy()
        self.active, self.scale = np.ones(n), np.ones(n)
        self.life, self.recovery = life_max.copy(), np.zeros(n)
        self.life_max, self.recovery_max = life_max.copy(), recovery_max.copy()
        self.warmup, self.fresh = warmup, fresh
        self.revivals = np.zeros(n, dtype=np.int64)
        self.largest_drift = 0.0

    def forward(self, x: Array) -> Array:
        self.x = x
        self.d = self.active * self.scale
        return self.d * (x @ self.weight.T + self.bias)

    def backward(self, gradient: Array) -> tuple[Array, Array, Array]:
        """Return gradients of the input, the weight and the bias."""
        inner = gradient * self.d
        return inner @ self.weight, inner.T @ self.x, inner.sum(0)

    def tick(self) -> None:
        for i in np.flatnonzero(self.scale < 1):  # (A)
            self.scale[i] = min(1.0, self.scale[i] + 1 / self.warmup)
        self.life = self.life - self.active  # (B)
        self.recovery = self.recovery - (1 - self.active)
        for i in np.flatnonzero((self.active == 1) & (self.life <= 0)):  # (C)
            self.weight_memory[i], self.bias_memory[i] = self.weight[i], self.bias[i]
            self.active[i] = 0
            self.recovery[i] = self.recovery_max[i]
            self.scale[i] = 1
        for i in np.flatnonzero((self.active == 0) & (self.recovery <= 0)):  # (D)
            moved = np.linalg.norm(self.weight[i] - self.weight_memory[i])
            self.largest_drift = max(
                self.largest_drift, moved / np.linalg.norm(self.weight_memory[i])
            )
            if self.fresh is not None:
                fresh = self.fresh(int(i), int(self.revivals[i]))
                self.weight_memory[i], self.bias_memory[i] = fresh
            self.weight[i], self.bias[i] = self.weight_memory[i], self.bias_memory[i]
            self.active[i] = 1
            self.life[i] = self.life_max[i]
            self.scale[i] = 1 / self.warmup if self.warmup else 1.0
            self.revivals[i] += 1


class NaiveLinear:
    def __init__(self, weight: Array, bias: Array) -> None:
        self.weight, self.bias = weight.copy(), bias.copy()

    def forward(self, x: Array) -> Array:
        self.x = x
        return x @ self.weight.T + self.bias

    def backward(self, gradient: Array) -> tuple[Array, Array, Array]:
        return gradient @ self.weight, gradient.T @ self.x, gradient.sum(0)


class NaiveAdam:
    """Adam with decoupled weight decay (AdamW)."""

    def __init__(self, lr: float, decay: float) -> None:
        self.lr, self.decay, self.betas, self.eps = lr, decay, (0.9, 0.999), 1e-8
        self.state: dict[int, tuple[int, Array, Array]] = {}

    def step(self, key: int, parameter: Array, gradient: Array) -> None:
        zero = np.zeros_like(parameter)
        t, m, v = self.state.get(key, (0, zero, zero))
        (b1, b2), t = self.betas, t + 1
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        self.state[key] = t, m, v
        parameter *= 1 - self.lr * self.decay
        parameter -= self.lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + self.eps)


class NaiveNet:
    """Lifecycle layers with tanh between, a linear head, the mean squared error."""

    def __init__(
        self,
        hidden: list[NaiveLifecycleLinear],
        head: NaiveLinear,
        optimizer: NaiveAdam,
    ) -> None:
        self.hidden, self.head, self.optimizer = hidden, head, optimizer

    def forward(self, x: Array) -> Array:
        self.outputs = []
        for layer in self.hidden:
            x = np.tanh(layer.forward(x))
            self.outputs.append(x)
        return self.head.forward(x)

    def update(self, x: Array, y: Array) -> None:
        out = self.forward(x)
        gradient, *head_gradients = self.head.backward(2 * (out - y) / out.size)
        gradients = [(self.head, head_gradients)]
        for layer, h in zip(self.hidden[::-1], self.outputs[::-1], strict=True):
            gradient, *own = layer.backward(gradient * (1 - h**2))
            gradients.append((layer, own))
        for i, (layer, (weight, bias)) in enumerate(gradients):
            self.optimizer.step(2 * i, layer.weight, weight)
            self.optimizer.step(2 * i + 1, layer.bias, bias)
        for layer in self.hidden:
            layer.tick()


# Draws: splitmix64 in unsigned arithmetic.


def splitmix64(seed: int, number: int) -> int:
    """Return word `number` of the sequence seeded `seed`."""
    mask = (1 << 64) - 1
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def word(seed: int, *keys: int) -> int:
    for key in keys:
        seed = splitmix64(seed, key)
    return seed


def duration(seed: int, low: int, high: int, what: int, revivals: int, unit: int) -> int:
    """Draw a life (`what` = 0) or a recovery (1)."""
    return low + (word(seed, what, revivals, unit) >> 1) % (high - low + 1)


def fresh_row(seed: int, tensor: int, revivals: int, unit: int, d_in: int, fans: int) -> Array:
    """Draw a row from U(±√(6/fans)); `tensor` is the place of the parameter in its layer."""
    words = [word(seed, 2 + tensor, revivals, unit, j) for j in range(d_in)]
    return np.array([(w >> 40) * 2.0**-23 - 1 for w in words]) * (6 / fans) ** 0.5
