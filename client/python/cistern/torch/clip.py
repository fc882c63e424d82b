# SPDX-License-Identifier: Apache-2.0
"""torch.nn.utils.clip_grad_norm_ for parameters of a store.

These have no ``grad``, so that torch's function would do nothing, without a word.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from cistern.torch.store import Store

_STORES: Any = WeakIdKeyDictionary()  # References to stores by parameter; they keep neither.


def add(store: Store, parameters: Iterable[torch.Tensor]) -> None:
    """Note that ``parameters`` are those of ``store``."""
    reference = weakref.ref(store)
    for parameter in parameters:
        _STORES[parameter] = reference


def _store_of(parameters: list[torch.Tensor]) -> Store | None:
    """Return the store of ``parameters``. ValueError: only some of them have one."""
    found = {_STORES.get(parameter) for parameter in parameters}
    stores: set[Store | None] = {None if store is None else store() for store in found}
    if len(stores) > 1:
        raise ValueError("cistern: parameters of a store are clipped together, and no others")
    return stores.pop() if stores else None


def _clip_norm(store: Store, max_norm: float, norm_type: float) -> torch.Tensor:
    if float(norm_type) != 2.0:
        raise ValueError("cistern: gradients are clipped by their L2 norm")
    optimizer = store.the_optimizer()
    optimizer.clip_norm = 0.0 if math.isinf(max_norm) else float(max_norm)
    return optimizer.norm


def _listed(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _norm_function(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(plain)
    def clip_grad_norm_(
        parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """As torch's. For a store, the next step clips, and fills the tensor that is returned."""
        tensors = _listed(parameters)
        store = _store_of(tensors)
        if store is None:
            return plain(tensors, max_norm, norm_type, *args, **kwargs)
        return _clip_norm(store, max_norm, norm_type)

    return clip_grad_norm_


def _value_function(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def clip_grad_value_(parameters: Any, *args: Any, **kwargs: Any) -> None:
        tensors = _listed(parameters)
        if _store_of(tensors) is not None:
            raise ValueError("cistern: gradients of a store are clipped by their norm alone")
        plain(tensors, *args, **kwargs)

    return clip_grad_value_


def install() -> None:
    """Put the functions of this module in the place of torch's. The import does this once."""
    utils: Any = torch.nn.utils
    norm = _norm_function(utils.clip_grad_norm_)
    value = _value_function(utils.clip_grad_value_)
    for module in (utils, utils.clip_grad):
        module.clip_grad_norm_ = norm
        module.clip_grad_value_ = value
