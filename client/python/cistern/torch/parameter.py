# SPDX-License-Identifier: Apache-2.0
"""The attributes ``data`` and ``grad`` of parameters that are in a store.

A store finds changes of weights by the version counters of parameters, and takes gradients out of
``grad``. Here, changes of ``data`` count too, and gradients that the daemon has can be read, and are
neither forgotten nor replaced.

The attributes are those of all parameters: a class of their own for some of them would make every
operation with them slower, because torch then looks for a ``__torch_function__``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import nn

from cistern.torch import gradients, owners

_DATA: Any = torch._C.TensorBase.data
_GRAD: Any = torch._C.TensorBase.grad
_MARK = "_is_in_a_store"

grad_of = attrgetter("_grad")  # As ``grad`` of torch.
set_grad = _GRAD.__set__  # Without questions.
version_of = attrgetter("_version")
_plain_data = _DATA.__get__


def mark(parameter: nn.Parameter) -> None:
    """Note that ``parameter`` is in a store."""
    setattr(parameter, _MARK, True)


def _data(parameter: nn.Parameter) -> torch.Tensor:
    """Return the values without the graph. Changes of those of a store count, as by ``detach``."""
    values: torch.Tensor
    values = parameter.detach() if hasattr(parameter, _MARK) else _plain_data(parameter)
    return values


def _grad(parameter: nn.Parameter) -> torch.Tensor | None:
    grad: torch.Tensor | None = grad_of(parameter)
    store = owners.store_of(parameter) if hasattr(parameter, _MARK) else None
    return grad if store is None else gradients.read(store, parameter, grad)


def _set_grad(parameter: nn.Parameter, grad: torch.Tensor | None) -> None:
    store = owners.store_of(parameter) if hasattr(parameter, _MARK) else None
    if store is not None and grad is None:
        gradients.forget(store, parameter)
    elif store is not None:
        gradients.check_set(store, parameter)
    set_grad(parameter, grad)


def _delete_grad(parameter: nn.Parameter) -> None:
    _set_grad(parameter, None)


def install() -> None:
    """Give the class of parameters the attributes of this module. The import does this once."""
    attributes: Any = nn.Parameter
    attributes.data = property(_data, _DATA.__set__)
    attributes.grad = property(_grad, _set_grad, _delete_grad)
