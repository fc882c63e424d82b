# SPDX-License-Identifier: Apache-2.0
"""Functions of torch.nn.utils that clip gradients, for parameters of a store.

Their ``grad`` is not the gradient of the step, so that torch's functions would do nothing, without a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from cistern.torch.owners import store_of

if TYPE_CHECKING:
    from cistern.torch.store import Store


def _common_store(parameters: list[torch.Tensor]) -> Store | None:
    """Return the store of ``parameters``. ValueError: only some of them have one."""
    stores = {store_of(parameter) for parameter in parameters if parameter.numel() > 0}
    if len(stores) > 1:
        raise ValueError(
            "cistern: parameters of a store are clipped together, and no others: call the function for"
            " each store"
        )
    return stores.pop() if stores else None


def _check_whole(store: Store, parameters: list[torch.Tensor]) -> None:
    """Raise ValueError if a parameter that ``store`` trains is not one of ``parameters``."""
    given = {id(parameter) for parameter in parameters}
    left_out = [
        tensor.name
        for tensor in store.trained_tensors()
        if tensor.parameter.requires_grad and id(tensor.parameter) not in given
    ]
    if left_out:
        raise ValueError(
            "cistern: gradients of a store are clipped by the norm of all of them, and"
            f" {len(left_out)} parameters are left out, such as '{left_out[0]}'. Modules that were attached"
            " one by one, as stores of their own, are clipped one by one"
        )


def _listed(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _norm_function(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(plain)
    def clip_grad_norm_(
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As torch's. For a store, the next step clips, and fills the tensor that is returned."""
        tensors = _listed(parameters)
        store = _common_store(tensors)
        if store is None:
            return plain(tensors, max_norm, norm_type, error_if_nonfinite, *args, **kwargs)
        if float(norm_type) != 2.0:
            raise ValueError(f"cistern: gradients are clipped by their L2 norm. {_BY_VALUE}")
        _check_whole(store, tensors)
        return store.the_optimizer().clip_next_step(float(max_norm), error_if_nonfinite)

    return clip_grad_norm_


def _refused(plain: Callable[..., None], why: str) -> Callable[..., None]:
    """Return ``plain``, which raises ValueError for parameters of a store."""

    @functools.wraps(plain)
    def function(parameters: Any, *args: Any, **kwargs: Any) -> None:
        tensors = _listed(parameters)
        if _common_store(tensors) is not None:
            raise ValueError(f"cistern: {why}")
        plain(tensors, *args, **kwargs)

    return function


def install() -> None:
    """Put the functions of this module in the place of torch's. The import does this once."""
    utils: Any = torch.nn.utils
    replaced = {
        "clip_grad_norm_": _norm_function(utils.clip_grad_norm_),
        "clip_grad_value_": _refused(
            utils.clip_grad_value_,
            f"gradients of a store are clipped by their norm alone. {_BY_VALUE}",
        ),
        "clip_grads_with_norm_": _refused(
            utils.clip_grads_with_norm_,
            "gradients of a store are clipped by their own norm: call clip_grad_norm_",
        ),
    }
    for name, function in replaced.items():
        for module in (utils, utils.clip_grad):
            setattr(module, name, function)


_BY_VALUE = (
    "To clip each element as it is computed, give each parameter a hook once, after attach:"
    " parameter.register_hook(lambda grad: grad.clamp(-c, c)). The README of the client has code for other norms"
)
