# SPDX-License-Identifier: Apache-2.0
"""Backward passes in two parts, as zero-bubble schedules have them: inputs first, weights later.

    I   runs the nodes between the outputs and the inputs of a stage. Where one of them has a branch to
        weights, it notes the gradients that the node is given.
    W   runs these nodes again, towards the weights alone.

Nodes that lead to the same weight are one group, so that its gradients are summed in the order of a
backward pass in one part, and have its bits. If the weights are in a store, their unit is open while a
node of it runs, and its gradients are handed in as soon as they are complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from cistern.torch import owners
from cistern.torch.divided_passes import Node, one_micro_batch, open_unit, reopen
from cistern.torch.lending import Unit
from cistern.torch.runner import Runner

Grads = Sequence[torch.Tensor | None]
Root = torch.Tensor | GradientEdge


class _Border:
    """A node with a branch to weights that does not lead to inputs."""

    def __init__(self, node: Node, weights: list[Node]) -> None:
        self.node = node
        self.weights = weights  # Their accumulators.
        self.grads: dict[int, torch.Tensor] = {}  # By the outputs of the node.
        self.unit: Unit | None = None  # That was open when the node ran.

    def note(self, runner: Runner | None, grads: Grads) -> None:
        """Note what the node is given. It is about to run."""
        self.grads = {i: grad for i, grad in enumerate(grads) if grad is not None}
        self.unit = open_unit(runner)

    def given(self, grads: Grads) -> tuple[torch.Tensor | None, ...]:
        """Return what the node was given, instead of ``grads``."""
        return tuple(self.grads.get(i) for i in range(len(grads)))


class Rest:
    """What is left of a backward pass whose inputs have their gradients."""

    def __init__(self, graph: _Graph, weights: dict[Node, nn.Parameter], runner: Runner | None):
        self.nodes = graph.parents.keys()
        self.groups = _groups(graph.borders)
        self.weights = weights  #: By their accumulators.
        self.runner = runner


def input_gradients(
    outputs: Sequence[Root | None],
    grads: Grads | None,
    inputs: Sequence[Any],
    weights: Iterable[nn.Parameter],
    runner: Runner | None,
) -> tuple[tuple[torch.Tensor | None, ...], Rest]:
    """Return the gradients of ``inputs``, None for those that have none, and what is left to compute.

    ``outputs`` are tensors, or their places in the graph; ``grads`` are their gradients, None: 1, as for a
    loss. Tensors of ``outputs`` lose their history. ``runner`` is that of the store of ``weights``.
    """
    roots = _roots(outputs, grads)
    accumulators = {get_gradient_edge(w).node: w for w in weights if w.requires_grad}
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    graph = _Graph(roots, [get_gradient_edge(x).node for x in wanted], accumulators)
    found = _run_inputs(graph, roots, wanted, runner) if wanted and roots else [None] * len(wanted)
    for output in outputs:
        if isinstance(output, torch.Tensor) and not output._is_view():
            output.detach_()
    of_inputs = dict(zip(map(id, wanted), found, strict=True))
    return tuple(of_inputs.get(id(x)) for x in inputs), Rest(graph, accumulators, runner)


def weight_gradients(rest: Rest) -> None:
    """Compute what is left, and add it to ``grad`` of the weights, or hand it in to their store."""
    runner = rest.runner
    order = {unit: i for i, unit in enumerate(runner.units if runner else ())}
    groups = [
        (_units_of(group, rest), group)
        for group in rest.groups
        if any(border.grads for border in group)
    ]
    groups.sort(key=lambda found: -max((order[unit] for unit in found[0]), default=0))
    waits = Counter(unit for units, _ in groups for unit in units)
    with one_micro_batch(runner, rest.nodes):
        for units, group in groups:
            _run_weights(group, rest)
            waits.subtract(units)
            for unit in units:
                if runner is not None and waits[unit] == 0:
                    runner.operators.deliver(unit)


def _roots(
    outputs: Sequence[Root | None], grads: Grads | None
) -> list[tuple[GradientEdge, torch.Tensor]]:
    """Return where a backward pass begins, with the gradients there."""
    roots = []
    for i, output in enumerate(outputs):
        grad = None if grads is None else grads[i]
        if isinstance(output, torch.Tensor) and output.requires_grad:
            grad = torch.ones_like(output) if grads is None else grad
            output = get_gradient_edge(output)
        if isinstance(output, GradientEdge) and grad is not None:
            roots.append((output, grad))
    return roots


class _Graph:
    """The nodes below the roots of a backward pass, and those of them at the border to the weights."""

    def __init__(
        self,
        roots: list[tuple[GradientEdge, torch.Tensor]],
        targets: list[Node],
        accumulators: Collection[Node],
    ) -> None:
        self.parents: dict[Node, list[Node]] = {edge.node: [] for edge, _ in roots}
        waiting = list(self.parents)
        while waiting:
            node = waiting.pop()
            for child in _children(node):
                if child not in self.parents:
                    self.parents[child] = []
                    waiting.append(child)
                self.parents[child].append(node)
        self._is_inner = self._above(targets)  # Nodes on a way to the inputs.
        self._accumulators = accumulators
        self.borders: list[_Border] = []
        for node in self._is_inner:
            branches = [child for child in _children(node) if child not in self._is_inner]
            self._add_border(node, branches)
        for node in {edge.node: None for edge, _ in roots if edge.node not in self._is_inner}:
            border = self._add_border(node, [node])
            if border is not None:  # It leads to no input, and is not run for them.
                border.grads = {edge.output_nr: grad for edge, grad in roots if edge.node is node}

    def _above(self, targets: list[Node]) -> dict[Node, None]:
        found = {node: None for node in targets if node in self.parents}
        waiting = list(found)
        while waiting:
            for parent in self.parents[waiting.pop()]:
                if parent not in found:
                    found[parent] = None
                    waiting.append(parent)
        return found

    def _add_border(self, node: Node, branches: list[Node]) -> _Border | None:
        """Have ``node`` as a border if its ``branches`` lead to weights."""
        seen = dict.fromkeys(branches)
        waiting = list(seen)
        while waiting:
            for child in _children(waiting.pop()):
                if child not in seen:
                    seen[child] = None
                    waiting.append(child)
        weights = [found for found in seen if found in self._accumulators]
        if not weights:
            return None
        self.borders.append(_Border(node, weights))
        return self.borders[-1]


def _children(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]


def _groups(borders: list[_Border]) -> list[list[_Border]]:
    """Return ``borders`` such that those with a common weight are together, in their order."""
    group_of: dict[Node, list[_Border]] = {}
    for border in borders:
        joined = {id(g): g for w in border.weights if (g := group_of.get(w)) is not None}
        group = [other for g in joined.values() for other in g] + [border]
        for other in group:
            group_of.update(dict.fromkeys(other.weights, group))
    return list({id(group): group for group in group_of.values()}.values())


def _units_of(group: list[_Border], rest: Rest) -> set[Unit]:
    """Return the units in which the weights of ``group`` are; none: they are in no store."""
    if rest.runner is None:
        return set()
    units: set[Unit] = set()
    for weight in {rest.weights[w] for border in group for w in border.weights}:
        store = owners.store_of(weight)
        tensor = None if store is None else store.tensor_of(weight)
        units.update(() if tensor is None else tensor.units)
    return units


def _run_inputs(
    graph: _Graph,
    roots: list[tuple[GradientEdge, torch.Tensor]],
    wanted: list[torch.Tensor],
    runner: Runner | None,
) -> Grads:
    """Return the gradients of ``wanted``. Borders note what they are given."""
    handles = [
        border.node.register_prehook(partial(border.note, runner)) for border in graph.borders
    ]
    try:
        return torch.autograd.grad(
            [edge for edge, _ in roots],
            wanted,
            [grad for _, grad in roots],
            retain_graph=True,
            allow_unused=True,
        )
    finally:
        for handle in handles:
            handle.remove()


def _run_weights(group: list[_Border], rest: Rest) -> None:
    """Add what comes through the nodes of ``group`` to ``grad`` of the weights."""
    handles = []
    for border in group:
        if rest.runner is not None and border.unit is not None:
            handles.append(border.node.register_prehook(partial(_reopen, rest.runner, border.unit)))
        if len(group) > 1:  # One of them can be on the way from another one.
            handles.append(border.node.register_prehook(border.given))
    weights = list({rest.weights[w]: None for border in group for w in border.weights})
    # The way from one node of a group to another one can lead through those of other groups.
    retain = any(len(other) > 1 for other in rest.groups)
    given = [
        (GradientEdge(border.node, i), grad) for border in group for i, grad in border.grads.items()
    ]
    try:
        torch.autograd.backward(
            [edge for edge, _ in given],
            [grad for _, grad in given],
            retain_graph=retain,
            inputs=weights,
        )
    finally:
        for handle in handles:
            handle.remove()
    for border in group:
        border.grads = {}


def _reopen(runner: Runner, unit: Unit, _: Any) -> None:
    reopen(runner, unit)
