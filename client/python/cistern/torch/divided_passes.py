# SPDX-License-Identifier: Apache-2.0
"""Forward passes that run again, and backward passes that are divided, of modules that may be in a store.

The schedules of pipelines do both. Without a store, nothing is to be done for them here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from cistern.torch import owners
from cistern.torch.aliases import release
from cistern.torch.lending import Unit
from cistern.torch.runner import Runner

Node = torch.autograd.graph.Node


def runner_of(module: nn.Module) -> Runner | None:
    """Return what runs the units of ``module``; None: it is in no store."""
    for parameter in module.parameters():
        store = owners.store_of(parameter)
        if store is not None:
            return store.runner
    return None


@contextmanager
def repeated(module: nn.Module) -> Iterator[None]:
    """Let the ``forward`` of ``module`` run again in a block, for a backward pass of an earlier run.

    The block calls it without the hooks of the module. Its graph has no backward pass of its own. The
    block can be in a backward pass.
    """
    runner = runner_of(module)
    if runner is None:
        yield
        return
    runner._check_begin(torch.is_grad_enabled())
    unit = runner.unit_of.get(module)
    running, before = [module], runner.is_repeating
    if unit is not None:
        runner.operators.push(unit, lambda: bool(running))
    runner.is_repeating = True
    try:
        yield
    finally:
        running.clear()
        runner.is_repeating = before
        if unit is not None:
            runner.operators.pop()


def open_unit(runner: Runner | None) -> Unit | None:
    """Return the unit that is open now; None: none is."""
    units = [] if runner is None else runner.operators.open_units
    return units[-1] if units else None


def reopen(runner: Runner, unit: Unit) -> None:
    """Open ``unit`` in a backward pass, because a node that ran in it runs now. The end of the pass closes it."""
    runner._follow_pass()
    if open_unit(runner) is not unit:
        runner.operators.push(unit, runner._pass_runs)


@contextmanager
def one_micro_batch(runner: Runner | None, nodes: Iterable[Node]) -> Iterator[None]:
    """Let the backward passes of a block be one micro-batch, which ends with it, if it does not raise.

    ``deliver`` hands in the gradients of a unit in the block, and its end those that are left. ``nodes``
    are the whole graph of the forward pass; what a backward pass of it has not freed is freed then.
    """
    if runner is None:
        yield
        return
    runner.operators.is_new_pass = runner.is_in_parts = True
    try:
        yield
    finally:
        runner.is_in_parts = False
    runner.deliver_rest()
    runner.operators.end_micro_batch()
    _free(runner, nodes)


def _free(runner: Runner, nodes: Iterable[Node]) -> None:
    """Expect no backward pass of the runs of units of which ``nodes`` are, and free their graphs."""
    uses: Any = {use for node in nodes if (use := getattr(node, "use", None)) in runner._left}
    for use in uses:
        runner._uses[use.unit].waiting.pop(use.pass_no, None)
        runner._uses[use.unit].retained.pop(use.pass_no, None)
        runner._left.discard(use)
        release(use, runner._anchor, _DONE.format(use.name))


_DONE = (
    "cistern: module '{0}' has had its backward pass, the last part of which has computed the gradients of its"
    " weights"
)
