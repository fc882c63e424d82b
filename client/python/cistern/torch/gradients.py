# SPDX-License-Identifier: Apache-2.0
"""Gradients that the daemon has, as the ``grad`` of parameters.

The daemon sums gradients in the step, so that they can be read only after it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import torch
from torch import nn

from cistern._abi import State, Status
from cistern.errors import CstError
from cistern.torch.running import in_backward
from cistern.torch.storage import without_memory
from cistern.torch.weights import torch_type

if TYPE_CHECKING:
    from cistern.torch.lending import Tensor, Unit
    from cistern.torch.store import Store


class HandedIn:
    """Which parameters have a gradient: in this attempt at the step, or else in the last step."""

    def __init__(self) -> None:
        self._without: dict[Unit, AbstractSet[Tensor]] = {}  # By units that had a backward pass.
        #: Those whose gradients of this step are discarded, with whether they were handed in.
        self.discarded: dict[Tensor, bool] = {}

    def add(self, unit: Unit, without: AbstractSet[Tensor]) -> None:
        """Note that the gradients of ``unit`` are handed in, but for the tensors that have none."""
        for tensor in unit.trained_tensors if self.discarded else ():
            if tensor not in without:
                self.discarded.pop(tensor, None)
        self._without[unit] = self._without.get(unit, without) & without

    def check(self, unit: Unit) -> None:
        """Raise RuntimeError if ``unit`` has a gradient of a tensor that was handed in and discarded.

        The discarded one is in the sum of the daemon, which cannot take one part of it.
        """
        again = [
            tensor.name
            for tensor, was_handed_in in self.discarded.items()
            if was_handed_in and unit in tensor.units and tensor.parameter._grad is not None
        ]
        if again:
            raise RuntimeError(_AGAIN.format(min(again)))

    def has(self, tensor: Tensor) -> bool:
        """Whether a gradient of ``tensor`` was handed in."""
        return any(tensor not in self._without.get(unit, (tensor,)) for unit in tensor.units)

    def forget(self, tensor: Tensor) -> None:
        """Let ``tensor`` have no gradient."""
        for unit in self._without.keys() & set(tensor.units):
            self._without[unit] |= {tensor}

    def discard(self, tensor: Tensor) -> None:
        """Let ``tensor`` have no gradient in this step, unless a later backward pass gives it one.

        All ranks have to discard it, also if what it had was not handed in yet.
        """
        self.discarded[tensor] = self.discarded.get(tensor, False) or self.has(tensor)
        self.forget(tensor)

    def forget_last(self) -> None:
        """Let no tensor have the gradient of the last step."""
        self._without.clear()

    def forget_all(self) -> None:
        """Let no tensor have a gradient."""
        self._without.clear()
        self.discarded.clear()


def read(store: Store, parameter: nn.Parameter, held: torch.Tensor | None) -> torch.Tensor | None:
    """Return what ``grad`` of ``parameter`` is after a backward pass; None: it has no gradient.

    It is a copy of that of the last step, until ``zero_grad`` or the next backward pass. If the step
    is not done, or if other ranks add to the gradient, it has a shape and a type, but each access to
    its elements raises RuntimeError. ``held`` is what autograd has computed and the daemon does not
    have: it is returned, unless earlier micro-batches have handed in what adds to it.
    """
    tensor = store.tensor_of(parameter)
    if tensor is None or not tensor.trains or not store.handed_in.has(tensor) or _is_compiling():
        return held
    if held is not None and not store.has_handed_in():
        return held
    device = store.device.torch_device
    if store.job.all_ranks > 1:
        words = _OTHER_RANKS + (_SCALED if store.parts.is_pipeline else "")
        return _unreadable(tensor, device, words.format(tensor.name))
    try:
        return store.read(tensor.name, State.GRAD).to(device)
    except CstError as error:
        why = error.text if error.status != Status.EBUSY else _BEFORE_STEP.format(tensor.name)
        return _unreadable(tensor, device, why)


def forget(store: Store, parameter: nn.Parameter) -> None:
    """Let ``parameter`` have no ``grad``: neither that of this step, nor else that of the last one.

    What autograd holds is left to the caller. All ranks do this that have a gradient of this step.
    RuntimeError: the daemon has it, and the job skips no parameters; or ``clip_grad_norm_`` was called
    before.
    """
    tensor = store.tensor_of(parameter)
    if tensor is None or not tensor.trains:
        return  # One that is trained may have been frozen since its backward pass.
    is_handed_in = store.runner.operators.has_gradients and store.handed_in.has(tensor)
    if is_handed_in and not store.skips_unused:
        raise RuntimeError(_NOT_SKIPPED)
    # What a hook takes away in the backward pass has not been seen by anybody.
    if is_handed_in or (parameter._grad is not None and not in_backward()):
        store.check_not_clipped(tensor)
        store.handed_in.discard(tensor)
    else:
        store.handed_in.forget(tensor)


def check_set(store: Store, parameter: nn.Parameter) -> None:
    """Raise RuntimeError if ``grad`` of ``parameter`` is set, and the daemon would add it to what it has.

    In a backward pass, a hook can set what the pass has computed.
    """
    tensor = store.tensor_of(parameter)
    if tensor is None or not tensor.trains or not store.has_handed_in():
        return
    if store.handed_in.has(tensor):
        raise RuntimeError(_NOT_SET.format(tensor.name))


def _is_compiling() -> bool:
    """Return whether torch.compile makes a graph, for which it looks at all tensors of a model."""
    return torch._guards.CompileContext.try_get() is not None


def _unreadable(tensor: Tensor, device: torch.device, why: str) -> torch.Tensor:
    text = f"cistern: grad of parameter '{tensor.name}' cannot be read: {why}"
    return without_memory(tensor.shape, torch_type(tensor.dtype), device, text)


_AGAIN = (
    "cistern: the gradient of parameter '{0}' was discarded (grad = None), and a later backward pass of the same"
    " step has one: discard it after the last backward pass, or call zero_grad of the optimizer, which begins"
    " the step again"
)
_NOT_SET = (
    "cistern: grad of parameter '{0}' cannot be set: a backward pass of this step has handed its gradient in to"
    " the daemon, which would add both. A hook (parameter.register_hook) or a factor on the loss changes"
    " gradients, and zero_grad of the optimizer discards them"
)
_NOT_SKIPPED = (
    "cistern: grad = None discards no gradient here: a backward pass of this step has handed it"
    " in to the daemon, and attach was told unused='zero'. zero_grad of the optimizer or of the"
    " whole model discards those of all parameters, and"
    " parameter.register_hook(torch.zeros_like) before the backward pass those of one"
)
_BEFORE_STEP = (
    "the daemon has the gradient, and sums it in the step of the optimizer. After the step, grad and"
    " Store.read('{0}', cistern.State.GRAD) return it. In the backward pass, a hook sees it"
    " (parameter.register_post_accumulate_grad_hook)"
)
_SCALED = (
    ". A schedule of torch.distributed.pipelining divides it after its backward passes, unless it is given"
    " scale_grads=False: give it that, and divide the loss by the number of micro-batches. Schedules that compute"
    " gradients of weights apart (zero bubble) are run by cistern.torch.parallel.schedules.runtime"
)
_OTHER_RANKS = (
    "the job has several ranks. After the step, Store.read('{0}', cistern.State.GRAD) returns the sum of"
    " their gradients"
)
