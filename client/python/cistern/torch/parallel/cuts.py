# SPDX-License-Identifier: Apache-2.0
"""Where a model of transformers is cut into stages, what each stage has, and whether it computes what the whole does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from cistern.torch.stages import Absent

_SHAPE = (2, 4)  # Of the tokens that are tried.
_TOLERANCE = 1e-4


def layers_of(model: nn.Module) -> nn.ModuleList:
    """Return the layers of ``model``: the list of blocks with the most parameters. ValueError: there is none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    sizes = [sum(parameter.numel() for parameter in found.parameters()) for found in lists]
    if not lists or max(sizes) == 0:
        raise ValueError(
            f"cistern: {type(model).__name__} has no list of layers (ModuleList) to cut between: give attach"
            " stages of your own"
        )
    return lists[sizes.index(max(sizes))]


def first_layers(n_layers: int, n_stages: int, borders: Sequence[int] | None) -> list[int]:
    """Return the first layer of each stage, and the number of layers."""
    if not 1 <= n_stages <= n_layers:
        raise ValueError(
            f"cistern: {n_layers} layers cannot be cut into {n_stages} stages: 1 to {n_layers} are possible"
        )
    inner = [n_layers * i // n_stages for i in range(1, n_stages)]
    cuts = [0, *(inner if borders is None else borders), n_layers]
    if len(cuts) != n_stages + 1 or any(a >= b for a, b in pairwise(cuts)):
        raise ValueError(
            f"cistern: borders {list(borders or ())} do not cut {n_layers} layers into {n_stages} stages: they are"
            f" {n_stages - 1} numbers that increase from 1 to at most {n_layers - 1}"
        )
    return cuts


class _Skipped(Absent):
    """A layer that other stages have. It returns the hidden states that it is given, whatever else it is given."""

    def forward(self, input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return input


class _NoTable(Absent):
    """A table whose rows the first stage adds."""

    def forward(self, input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return torch.zeros((), device=input.device)


class Probe:
    """What modules of a whole model are given and return, when it runs with a few tokens."""

    def __init__(self, model: nn.Module, layers: nn.ModuleList, tokens: torch.Tensor) -> None:
        self.before: list[nn.Module] = []  # That return hidden states before the first layer.
        self.after: list[nn.Module] = []  # That return something after the last one.
        self.given: list[torch.Tensor] = []  # By layer, the hidden states that it is given.
        self._n_ran = 0
        outside = [m for m in model.modules() if not _is_in(m, layers) and not _has(m, layers)]
        hooks = [
            layer.register_forward_pre_hook(self._enters, with_kwargs=True) for layer in layers
        ]
        hooks += [layer.register_forward_hook(self._leaves) for layer in layers]
        hooks += [module.register_forward_hook(self._ran) for module in outside]
        try:
            self.result = _run(model, input_ids=tokens)
        finally:
            for hook in hooks:
                hook.remove()

    def _enters(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self.given.append(args[0] if args else kwargs["hidden_states"])

    def _leaves(self, layer: nn.Module, _: Any, output: Any) -> None:
        self._n_ran += 1
        self.last = output

    def _ran(self, module: nn.Module, _: Any, output: Any) -> None:
        if self._n_ran > 0:
            self.after.append(module)
        elif isinstance(output, torch.Tensor) and output.is_floating_point() and output.ndim == 3:
            self.before.append(module)


def _run(model: nn.Module, **given: Any) -> torch.Tensor:
    output = model(**given, use_cache=False)
    if not isinstance(getattr(output, "logits", None), torch.Tensor):
        raise ValueError(  # noqa: TRY004 (the model is the wrong one, not its type)
            f"cistern: {type(model).__name__} returns no logits: stages are cut out of causal language models of"
            " transformers"
        )
    logits: torch.Tensor = output.logits
    return logits


def _is_in(module: nn.Module, layers: nn.ModuleList) -> bool:
    return any(module is inner for inner in layers.modules())


def _has(module: nn.Module, layers: nn.ModuleList) -> bool:
    return any(inner is layers for inner in module.modules())


def _kept(model: nn.Module, probe: Probe, is_first: bool, is_last: bool) -> set[nn.Module]:
    """Return the modules outside of the layers that a stage has."""
    gone: set[nn.Module] = set()
    if not is_first:
        gone |= set(probe.before)
    if not is_last:
        gone |= set(probe.after)
    if (
        is_last and not is_first
    ):  # The name of what is tied to the head is that of the first module that has it.
        tied = {id(p) for module in probe.after for p in module.parameters()}
        gone -= {m for m in probe.before if any(id(p) in tied for p in m.parameters())}
    return {module for module in model.modules() if module not in gone}


def absent_from(
    model: nn.Module, layers: Sequence[nn.Module], probe: Probe, first: int, end: int
) -> list[tuple[nn.Module, str, nn.Module]]:
    """Return what a stage lacks that has the layers from ``first`` to before ``end``: parents, names and modules."""
    mine, all_layers = set(layers[first:end]), set(layers)
    kept = mine | (_kept(model, probe, first == 0, end == len(layers)) - all_layers)
    return [
        (module, name, child)
        for module in model.modules()
        for name, child in module._modules.items()
        if child is not None and child not in kept
    ]


def stand_in(module: nn.Module) -> nn.Module:
    """Return what stands for ``module``, which a stage lacks."""
    return _NoTable() if isinstance(module, nn.Embedding) else _Skipped()


def few_tokens(model: nn.Module) -> torch.Tensor:
    """Return tokens with which a model is tried, where it has values; on the host if it has none."""
    places = {parameter.device for parameter in model.parameters()} - {torch.device("meta")}
    device = min(places, key=str, default=torch.device("cpu"))
    return torch.arange(2, 2 + math.prod(_SHAPE), device=device).reshape(_SHAPE)


def check(
    stage: int, model: Callable[[Any], torch.Tensor], given: Any, wanted: torch.Tensor
) -> None:
    """Raise ValueError if a stage computes something else than its modules in the whole, or cannot run."""
    why = "computes something else than its modules in the whole model"
    try:
        result = model(given)
    except Exception as error:
        raise ValueError(_NOT_CUT.format(stage, f"cannot run ({error})")) from error
    is_alike = result.shape == wanted.shape and torch.allclose(
        result.float(), wanted.float(), rtol=_TOLERANCE, atol=_TOLERANCE * float(wanted.abs().max())
    )
    if not is_alike:
        raise ValueError(_NOT_CUT.format(stage, why))


_NOT_CUT = (
    "cistern: stage {0} {1}: the model cannot be cut into stages that give each other hidden states alone, such as"
    " because it changes what it is given as inputs_embeds. Give attach stages of your own, with the names of the"
    " whole"
)
