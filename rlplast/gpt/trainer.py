"""A GPT on a sequence of phases, as a Trainable, in one process or several."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlplast.core.device import on_device, refuse_capture
from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Activations
from rlplast.core.network.network import Network
from rlplast.core.network.record import Recorder
from rlplast.core.rng import derive_seed, numpy_stream
from rlplast.gpt.config import GPTConfig, Phase
from rlplast.gpt.corpus import Corpus, batch, check_corpus, open_corpus, validation_batches
from rlplast.gpt.model import GPT, cross_entropy
from rlplast.gpt.start import start
from rlplast.optimizers.config import lr_at
from rlplast.training import distributed
from rlplast.training.trainable import Learnt, Trainable

__all__ = ["GPTTrainer"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class _Loss(nn.Module):
    """A GPT's loss as a forward pass, which is what DDP and torch.compile wrap."""

    def __init__(self, gpt: GPT, device_type: str, precision: str) -> None:
        super().__init__()
        self.gpt = gpt
        self.device_type, self.dtype = device_type, DTYPES[precision]

    def forward(self, rows: Tensor, recorder: Recorder | None = None) -> tuple[Tensor, Activations]:
        """Return the loss, in nats per token, of rows (sequences, context + 1), and activations."""
        inputs, targets = rows[:, :-1], rows[:, 1:]
        with torch.autocast(self.device_type, self.dtype, enabled=self.dtype != torch.float32):
            if recorder is None:
                return self.gpt.loss(inputs, targets), {}
            logits, activations = recorder.of(self.gpt, inputs)
            return cross_entropy(logits, targets), activations


class GPTTrainer(Trainable):
    """A GPT, its corpora and its phases; one step is one update, or the start of the next phase.

    Started by ``torchrun``, every process draws the whole batch and takes its rows, on a CUDA
    device of its own, so that N processes follow one.

    Raises:
        ConfigError: if a corpus or the start does not exist or fit the model, or the batch cannot
            be split as the config says.
    """

    several_processes = True
    saved = (*Trainable.saved, "scaler")
    config: GPTConfig

    def __init__(self, config: GPTConfig, device: torch.device) -> None:
        self.phases = config.phase_list()
        self.own_batch, self.micro_batch = config.own_batch(distributed.world())
        if config.precision == "fp16" and device.type != "cuda":
            raise ConfigError(
                f"precision = 'fp16' on {device.type}: allowed are fp32 and bf16; fp16 needs CUDA"
            )
        self.corpora = _open(config)
        device = distributed.join(device)
        super().__init__(config, device)
        self.fingerprints = {f"corpora.{n}": corpus.sha256 for n, corpus in self.corpora.items()}
        if distributed.rank() > 0:  # other dropout for other rows
            torch.manual_seed(derive_seed(self.streams.seed, "model", distributed.rank()))
        self.gpt = GPT(config.model)
        self.build({"gpt": (self.gpt,)})
        self.updater = self.updaters["gpt"]
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self._plain_loss = _Loss(self.gpt, device.type, config.precision)
        # Compiled below DDP, whose hooks on gradients stay outside the graph.
        self._loss = distributed.averaging(self._compiled(self._plain_loss), device)

    def _initialise(self, network: Network) -> None:
        super()._initialise(network)
        config = self.config
        run = config.start.run and config.start.run.replace("{seed}", str(config.seed))
        # The config gets the name of the checkpoint that newest or best stands for.
        config.start = start(network, replace(config.start, run=run), config.model)

    # One step: an update, or the start of a phase.

    def step(self) -> None:
        """Do one update, or start the next phase if this one is over."""
        phase = self.phases[self.clock.phase]
        if self.clock.updates < phase.start + phase.updates:
            self._update(phase)
        else:
            self.next_phase()  # hooks fire between this phase and the next

    def _update(self, phase: Phase) -> None:
        config = self.config
        self.updater.set_lr(self.clock.updates - phase.start, phase.updates)
        rows = self._rows(phase.shares, config.batch_size, self.streams.numpy("data"))
        part = rows[distributed.rank() * self.own_batch :][: self.own_batch]
        part = on_device(part, self.device)
        after = self.clock.advance(updates=1, tokens=config.batch_size * config.model.context)
        self.make_update(after, self._learn, (part,))

    def _learn(self, inputs: Iterable[Tensor]) -> Learnt:
        """Learn from this process's rows."""
        (rows,) = inputs
        self.updater.zero_grad()
        loss, activations = self._backward(rows.split(self.micro_batch))
        if self.scaler.is_enabled():
            self._scaled_step()
        else:
            self.updater.step()
        return loss, {"gpt": activations}

    def _scaled_step(self) -> None:
        """Update once along scaled gradients, if they are finite."""
        refuse_capture("precision fp16 skips updates, as the host decides")
        optimizers = self.updater.optimizers
        for optimizer in optimizers:
            self.scaler.unscale_(optimizer)
        self.updater.clip()
        for optimizer in optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()

    def _backward(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, Activations]:
        """Add up the gradient of this process's rows; return all ranks' loss, without penalties."""
        recorder, recorded = self.recorders.get("gpt"), []
        whole = torch.zeros((), device=self.device)
        for i, part in enumerate(parts, 1):
            last = i == len(parts)  # its backward pass averages over ranks
            with nullcontext() if last else distributed.accumulating(self._loss):
                loss, activations = self._loss(part, recorder)
                recorded.append(activations)
                loss = loss / len(parts)
                whole += loss.detach()
                if last:
                    loss = self.penalised("gpt", loss, distributed.average(whole))
                self.scaler.scale(loss).backward()
        joined = {name: torch.cat([part[name] for part in recorded]) for name in recorded[0]}
        return whole, joined

    def _rows(self, shares: Mapping[str, float], rows: int, rng: np.random.Generator) -> Tensor:
        """Return token ids of a mixture, int64, (rows, context + 1), on the CPU."""
        corpora = [self.corpora[name] for name in shares]
        context = self.config.model.context
        return torch.from_numpy(batch(corpora, list(shares.values()), rows, context, rng))

    # What the loop asks for.

    def evaluate(self, number: int, episodes: int) -> dict[str, float]:
        """Return losses in nats per token: of each corpus, and the mean of this phase's mixture."""
        scores = {f"{name}/loss": self._validate(corpus) for name, corpus in self.corpora.items()}
        shares = self.phases[self.clock.phase].shares
        mixed = sum(share * scores[f"{name}/loss"] for name, share in shares.items())
        return scores | {"loss": mixed}

    @torch.no_grad()
    def _validate(self, corpus: Corpus) -> float:
        """Return a corpus's loss; each rank computes its share of the rows."""
        config = self.config
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # of losses, of rows
        with self.reading():
            for rows in validation_batches(
                corpus, config.model.context, config.evaluate.batches, config.batch_size
            ):
                share = on_device(rows[distributed.rank() :: distributed.world()], self.device)
                for part in share.split(self.micro_batch) if len(share) else ():
                    sums[0] += self._plain_loss(part)[0].double() * len(part)
                    sums[1] += len(part)
        loss, count = distributed.total(sums).tolist()
        return loss / count

    def metrics(self) -> dict[str, float]:
        """Return means since the last call, and the last update's learning rate."""
        phase = self.phases[self.clock.phase]
        last = max(0, self.clock.updates - phase.start - 1)
        lr = lr_at(self.config.optimizer, last, phase.updates)
        return super().metrics() | {"train/lr": lr}

    def sample(self, size: int, number: int) -> Tensor:
        """Return rows of this phase's training mixture, drawn from a stream of their own."""
        shares = self.phases[self.clock.phase].shares
        rng = numpy_stream(self.config.seed, "probe", number)
        return on_device(self._rows(shares, size, rng), self.device)

    def batches(self, count: int | None, size: int, number: int) -> Iterator[Tensor]:
        """Yield rows of this phase's training mixture; None is as many as the phase trains on."""
        phase = self.phases[self.clock.phase]
        rows = phase.updates * self.config.batch_size
        rng = numpy_stream(self.config.seed, "batches", number)
        for _ in range(-(-rows // size) if count is None else count):
            yield on_device(self._rows(phase.shares, size, rng), self.device)

    def _loss_on(self, network: str, batch: Tensor) -> Tensor:
        return self._plain_loss(batch)[0]

    def _outputs_on(self, network: str, batch: Tensor, module: nn.Module) -> Tensor:
        """Return the logits after the last token of each row, (batch, vocab_size)."""
        return module(batch[:, :-1])[:, -1]

    def state_dict(self) -> dict[str, Any]:
        """Return streams, every process's dropout generator, sums and the gradient scale."""
        on_cuda = self.device.type == "cuda"
        dropout = torch.cuda.get_rng_state(self.device) if on_cuda else torch.get_rng_state()
        return super().state_dict() | {"dropout": distributed.gather(dropout)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; ConfigError if a corpus is another one by now.

        With another number of processes dropout differs from the uninterrupted run's.
        """
        super().load_state_dict(state)
        if not self.streams.parted:  # else dropout draws from the new stream
            dropout = state["dropout"][distributed.rank() % len(state["dropout"])]
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(dropout, self.device)
            else:
                torch.set_rng_state(dropout)

    def close(self) -> None:
        """Leave the group of processes, if there is one."""
        distributed.leave()


def _open(config: GPTConfig) -> dict[str, Corpus]:
    """Open the corpora, which must fit the model and have one tokenizer."""
    corpora = {name: open_corpus(name, source) for name, source in config.corpora.items()}
    for corpus in corpora.values():
        check_corpus(corpus, config.model.context, config.model.vocab_size)
    used = {corpus.name: corpus.tokenizer for corpus in corpora.values()}
    if len(set(used.values())) > 1:
        raise ConfigError(f"corpora have different tokenizers, {used}: allowed is one for all")
    return corpora
