# SPDX-License-Identifier: Apache-2.0
"""Which store a parameter belongs to. Optimizers other than that of the store are refused.

The daemon has the gradients of a store's parameters when an optimizer steps, and it updates the
parameters. Another optimizer would therefore do nothing that lasts, without a word. So would
``zero_grad`` of a module, which is replaced by one that discards the gradients in the store.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from cistern.torch.optimizer import Optimizer

if TYPE_CHECKING:
    from cistern.torch.lending import Tensor
    from cistern.torch.store import Store

_STORES: Any = WeakIdKeyDictionary()  # References to stores by parameter; they keep neither.
_n_added = 0  # Calls of ``add``.
#: Optimizers that have no parameter of a store, with ``_n_added`` when they were looked at.
_foreign: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()


def add(store: Store, parameters: Iterable[torch.Tensor]) -> None:
    """Note that ``parameters`` are those of ``store``."""
    global _n_added
    _n_added += 1
    reference = weakref.ref(store)
    for parameter in parameters:
        _STORES[parameter] = reference


def store_of(parameter: torch.Tensor) -> Store | None:
    """Return the store of ``parameter``; None: it is in no store, or the store is gone."""
    reference = _STORES.get(parameter)
    store: Store | None = None if reference is None else reference()
    return store


def _refuse(optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
    """Raise RuntimeError if ``optimizer`` has parameters that only a store can update."""
    if isinstance(optimizer, Optimizer) or _foreign.get(optimizer) == _n_added:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            store = store_of(parameter) if parameter.requires_grad else None
            tensor = None if store is None else store.tensor_of(parameter)
            if tensor is not None:
                raise RuntimeError(
                    f"cistern: {type(optimizer).__name__} cannot update parameter '{tensor.name}',"
                    " which is in a store: use the optimizer that Store.optimizer returns"
                )
    _foreign[optimizer] = _n_added


def _discard(module: nn.Module) -> None:
    """Discard the gradients of stores that ``module`` has all trained parameters of.

    Of a part, it discards the gradients that were handed in; the rest is in ``grad``. RuntimeError: some
    were, and the job skips no parameters.
    """
    found: dict[Store, list[Tensor]] = {}
    for parameter in module.parameters():
        store = store_of(parameter)
        tensor = None if store is None else store.tensor_of(parameter)
        if store is not None and tensor is not None and tensor.trains:
            found.setdefault(store, []).append(tensor)
    for store, tensors in found.items():
        if len(tensors) == sum(1 for _ in store.trained_tensors()):
            store.discard_gradients()
        else:
            _discard_part(store, tensors)


def _discard_part(store: Store, tensors: list[Tensor]) -> None:
    """Discard the gradients of ``tensors``, of this step or else of the last one. A hook can call this."""
    has_gradients = store.runner.operators.has_gradients
    handed_in = {tensor.name for tensor in tensors if has_gradients and store.handed_in.has(tensor)}
    if handed_in and not store.skips_unused:
        raise RuntimeError(
            "cistern: zero_grad of a part of a model discards no gradients: a backward pass of this step"
            " has handed them in to the daemon. zero_grad of the optimizer or of the whole model"
            " discards those of all parameters"
        )
    for tensor in tensors:
        if tensor.name in handed_in:
            tensor.parameter.grad = None
        else:
            store.handed_in.forget(tensor)


def install() -> None:
    """Look at optimizers of torch when they step, and at modules whose gradients are discarded.

    The import of cistern.torch does this once.
    """
    register_optimizer_step_pre_hook(_refuse)
    modules: Any = nn.Module
    plain = modules.zero_grad

    @functools.wraps(plain)
    def zero_grad(self: nn.Module, set_to_none: bool = True) -> None:
        _discard(self)
        plain(self, set_to_none)

    modules.zero_grad = zero_grad
