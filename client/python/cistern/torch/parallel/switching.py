# SPDX-License-Identifier: Apache-2.0
"""All stages of a model of transformers in one process: the model itself, of which one stage runs at a time.

While a stage runs, identities stand for the modules of the other stages, as in ``cutting``. The modules stay
the same objects, so that a store has each weight once, under its name in the whole.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from cistern.torch.parallel import cuts
from cistern.torch.parallel.cutting import values
from cistern.torch.runner import not_compiled
from cistern.torch.stages import Absent


class _End(Absent):
    """Stands for the first layer after a stage, and keeps the hidden states that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: torch.Tensor | None = None

    def forward(self, input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        self.given = input
        return input


class Switched:
    """``model`` in ``n_stages`` stages, of which ``run`` runs any one.

    Cuts are between the layers, as of ``stage_of``, and so are the values with which all stages are tried.

    ValueError: the model cannot be cut so, or its stages do not have its loss.
    """

    def __init__(self, model: nn.Module, n_stages: int, borders: Sequence[int] | None) -> None:
        self._model: Any = model
        layers = cuts.layers_of(model)
        self._cuts = cuts.first_layers(len(layers), n_stages, borders)
        self.n_stages = n_stages
        self._ends = [_End() for _ in range(n_stages)]
        #: By module, the stages in which it runs.
        self.stages_of: dict[nn.Module, set[int]] = {}
        self._swaps: list[list[tuple[nn.Module, str, nn.Module]]] = []
        self.random = Random(layers)
        tokens = cuts.few_tokens(model)
        was_training = model.training
        model.eval()
        with torch.no_grad(), torch.random.fork_rng(), values(model, tokens.device):
            probe = cuts.Probe(model, layers, tokens)
            whole = {"input_ids": tokens, "labels": tokens}
            loss = self._model(**whole, use_cache=False).loss
            _check_loss(model, probe.result, tokens, loss)
            #: Shape without rows and tokens, and type, of hidden states.
            self.hidden = probe.given[0].shape[2:], probe.given[0].dtype
            self._swaps = [self._swaps_of(stage, list(layers), probe) for stage in range(n_stages)]
            self._try(probe, whole, loss)
        model.train(was_training)

    def _swaps_of(
        self, stage: int, layers: list[nn.Module], probe: cuts.Probe
    ) -> list[tuple[nn.Module, str, nn.Module]]:
        """Return what stands where in the model while ``stage`` runs."""
        first, end = self._cuts[stage], self._cuts[stage + 1]
        return [
            (
                module,
                name,
                self._ends[stage] if child in layers[end : end + 1] else cuts.stand_in(child),
            )
            for module, name, child in cuts.absent_from(self._model, layers, probe, first, end)
        ]

    @contextmanager
    def _only(self, stage: int) -> Iterator[None]:
        """Let the model be stage ``stage`` in the block of a ``with`` statement."""
        swaps = self._swaps[stage]
        before = [module._modules[name] for module, name, _ in swaps]
        try:
            for module, name, other in swaps:
                module._modules[name] = other
            yield
        finally:
            for (module, name, _), own in zip(swaps, before, strict=True):
                module._modules[name] = own

    def run(
        self, stage: int, hidden: torch.Tensor | None, inputs: Mapping[str, Any]
    ) -> torch.Tensor:
        """Return the hidden states that ``stage`` returns; the loss, if it is the last one.

        ``hidden`` is what the stage before has returned; None for the first one. ``inputs`` are those of
        the whole model.
        """
        is_last = stage == self.n_stages - 1
        given = {k: v for k, v in inputs.items() if is_last or k not in _OF_LOSS}
        if hidden is not None:
            given.pop("input_ids")
            given["inputs_embeds"] = hidden
        with self._only(stage):
            output = self._model(**given, use_cache=False)
        if is_last:
            loss: torch.Tensor = output.loss
            return loss
        end = self._ends[stage]
        result, end.given = end.given, None
        assert result is not None
        return result

    def _try(self, probe: cuts.Probe, whole: Mapping[str, Any], loss: torch.Tensor) -> None:
        """Raise ValueError if a stage computes something else than its modules in the whole."""
        for stage in range(self.n_stages):
            with _noted(self._model, partial(self._ran, stage)):
                given = None if stage == 0 else probe.given[self._cuts[stage]]
                is_last = stage == self.n_stages - 1
                wanted = loss if is_last else probe.given[self._cuts[stage + 1]]
                cuts.check(stage, partial(self.run, stage, inputs=whole), given, wanted)

    def _ran(self, stage: int, module: nn.Module, *_: Any) -> None:
        self.stages_of.setdefault(module, set()).add(stage)


def _check_loss(
    model: nn.Module, logits: torch.Tensor, tokens: torch.Tensor, loss: torch.Tensor
) -> None:
    """Raise ValueError if ``loss`` is not the mean over the labels, of which micro-batches are given parts."""
    mean = nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()
    )
    if not abs(float(mean) - float(loss)) <= 1e-5 * abs(float(loss)):
        raise ValueError(
            f"cistern: the loss of {type(model).__name__} is {float(loss):.6g}, as tried with few tokens, and the mean"
            f" of the next tokens' is {float(mean):.6g}: the last stage cannot compute another term, such as that of"
            " routers (output_router_logits)"
        )


_OF_LOSS = ("labels", "num_items_in_batch", "shift_labels")


@contextmanager
def _noted(model: nn.Module, note: Any) -> Iterator[None]:
    """Call ``note(module)`` before each module of ``model`` that runs in the block of a ``with`` statement."""
    hooks = [module.register_forward_pre_hook(note) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class Random:
    """Random numbers, such as of dropout, that follow from the step, the micro-batch and the layer.

    They depend neither on the process that draws them nor on the number of stages, and are the same in a
    forward pass that is repeated.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        self._key: tuple[int, ...] | None = None
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(not_compiled(partial(self._place, number + 1)))
        layers[-1].register_forward_hook(not_compiled(partial(self._place, len(layers) + 1)))

    @contextmanager
    def of(self, *key: int) -> Iterator[None]:
        """Let random numbers follow from the integers ``key`` and the layer, to the end of a block."""
        self._key = key
        try:
            self._place(0)
            yield
        finally:
            self._key = None

    def _place(self, number: int, *_: Any) -> None:
        """Begin the random numbers of place ``number`` of the model."""
        if self._key is not None:
            packed = struct.pack(f"<{len(self._key) + 1}q", *self._key, number)
            digest = hashlib.blake2b(packed, digest_size=8).digest()
            torch.manual_seed(int.from_bytes(digest, "little") >> 1)
