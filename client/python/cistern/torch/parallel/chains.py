# SPDX-License-Identifier: Apache-2.0
"""Linear layers of which one takes what others return, with nothing between them that has parameters.

A model is run once, with few tokens. Each linear layer returns a new leaf of autograd, so that the graph
behind the input of another one has what lies between the two, and ends at the layers it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

#: What computes element by element, as autograd calls it. A view keeps the last dimension, or is no chain.
_ELEMENTWISE = re.compile(
    r"(Add|Sub|Mul|Div|Neg|Pow|Square|Sqrt|Abs|Exp|Erf|Tanh|Sigmoid|Silu|Gelu|Relu|LeakyRelu|Elu|Softplus"
    r"|Hardtanh|Hardswish|Hardsigmoid|Clamp|ClampMin|ClampMax|Where|ToCopy|Clone|View|UnsafeView|Alias"
    r"|NativeDropout)Backward\d+|\w*(Gelu|Silu|Swish|Relu)\w*Backward",  # The last ones are of a program.
    re.IGNORECASE,
)
_HEAD_DIMS = ("head_dim", "head_size", "attention_head_size")


class Chain(NamedTuple):
    """Layers that ranks cut by their outputs, and those that take them, which ranks cut by their inputs."""

    firsts: list[nn.Module]
    seconds: list[nn.Module]
    second_names: list[str]
    is_elementwise: bool  #: Else there is something else between them, such as attention.
    head_dim: int  #: 0: unknown.


def is_linear(module: Any) -> bool:
    return type(module) is nn.Linear or _is_conv1d(module)


def _is_conv1d(module: Any) -> bool:
    """Return whether ``module`` is the linear layer of GPT-2, whose weight has a row for each input."""
    return (
        type(module).__name__ == "Conv1D"
        and type(module).__module__ == "transformers.pytorch_utils"
    )


def widths_of(module: Any) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a linear layer."""
    if _is_conv1d(module):
        return module.nx, module.nf
    return module.in_features, module.out_features


def head_dim_of(module: Any) -> int:
    """Return how many elements a head of ``module`` has; 0: it is no attention, or does not say it."""
    found = [getattr(module, name, None) for name in _HEAD_DIMS]
    return next((width for width in found if isinstance(width, int)), 0)


class _Input(NamedTuple):
    """Of one call of a linear layer."""

    leaves: frozenset[int]  #: Ids of linear layers whose outputs it comes from.
    is_pure: bool  #: It comes from nothing else that has parameters.
    is_elementwise: bool


class _Trace:
    def __init__(self, model: nn.Module) -> None:
        self.all = dict(model.named_modules())
        self.modules = {id(m): (name, m) for name, m in model.named_modules() if is_linear(m)}
        self.inputs: dict[int, list[_Input]] = {}  # By the id of the layer.
        self._leaves: dict[int, int] = {}  # Ids of layers by those of what they have returned.
        self._kept: list[torch.Tensor] = []  # So that no id is used twice.

    def before(self, module: nn.Module, args: Any) -> None:
        self.inputs.setdefault(id(module), []).append(self.look(args[0]))

    def after(self, module: nn.Module, _: Any, output: torch.Tensor) -> torch.Tensor:
        leaf = output.detach().requires_grad_()
        self._leaves[id(leaf)] = id(module)
        self._kept.append(leaf)
        return leaf.view_as(leaf)  # A leaf cannot be changed in place.

    def look(self, tensor: torch.Tensor) -> _Input:
        """Return what is behind ``tensor``."""
        leaves: set[int] = set()
        is_pure = is_elementwise = True
        width = tensor.shape[-1]
        todo, seen = [tensor.grad_fn], set()
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None:
                leaf = self._leaves.get(id(variable))
                is_pure = is_pure and leaf is not None
                is_elementwise = is_elementwise and variable.shape[-1] == width
                leaves |= {leaf} if leaf is not None else set()
                continue
            is_elementwise = is_elementwise and _ELEMENTWISE.fullmatch(node.name()) is not None
            todo += [before for before, _ in node.next_functions]
        return _Input(frozenset(leaves), is_pure and bool(leaves), is_elementwise)


def chains_of(model: nn.Module, run: Callable[[], torch.Tensor]) -> list[Chain]:
    """Return the chains of ``model``, which ``run`` runs, and whose result it returns."""
    trace = _Trace(model)
    linear = [module for _, module in trace.modules.values()]
    hooks = [module.register_forward_pre_hook(trace.before) for module in linear]
    hooks += [module.register_forward_hook(trace.after) for module in linear]
    try:
        with torch.enable_grad(), torch.random.fork_rng():
            end = trace.look(run())
    finally:
        for hook in hooks:
            hook.remove()
    return _chains(trace, end)


def _chains(trace: _Trace, end: _Input) -> list[Chain]:
    uses: dict[int, list[frozenset[int]]] = {}  # Of each layer, the inputs that its output is in.
    groups: dict[frozenset[int], list[int]] = {}  # Layers that take the same.
    for layer, calls in trace.inputs.items():
        for call in calls:
            for leaf in call.leaves:
                uses.setdefault(leaf, []).append(call.leaves)
        if len({call.leaves for call in calls}) == 1 and all(call.is_pure for call in calls):
            groups.setdefault(calls[0].leaves, []).append(layer)
    for leaf in end.leaves:
        uses.setdefault(leaf, []).append(frozenset())
    chains = []
    taken: set[int] = set()

    def n_elems(found: tuple[frozenset[int], list[int]]) -> int:
        layers = {*found[0], *found[1]}
        return sum(p.numel() for layer in layers for p in trace.modules[layer][1].parameters())

    # Of layers that could be in several chains, such as an adapter's, the largest chain has them.
    for leaves, layers in sorted(groups.items(), key=n_elems, reverse=True):
        firsts = [layer for layer in trace.inputs if layer in leaves]
        alone = all(set(uses[first]) == {leaves} for first in firsts)
        if not alone or taken & {*firsts, *layers} or leaves & set(layers):
            continue
        taken |= {*firsts, *layers}
        chains.append(_chain(trace, firsts, layers))
    return chains


def _chain(trace: _Trace, firsts: list[int], seconds: list[int]) -> Chain:
    names = [trace.modules[layer][0] for layer in seconds]
    return Chain(
        [trace.modules[layer][1] for layer in firsts],
        [trace.modules[layer][1] for layer in seconds],
        names,
        all(call.is_elementwise for layer in seconds for call in trace.inputs[layer]),
        _head_dim_around(trace.all, trace.modules[firsts[0]][0]),
    )


def _head_dim_around(modules: dict[str, nn.Module], name: str) -> int:
    """Return how many elements a head has in the attention that has the module ``name``; 0: unknown."""
    width = 0
    while name and width == 0:
        name = name.rpartition(".")[0]
        width = head_dim_of(modules[name])
    return width
