# SPDX-License-Identifier: Apache-2.0
"""Changes of a model after attach that its store cannot follow."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Collection, Iterator
from typing import NoReturn

from torch import nn

from cistern.torch import shards
from cistern.torch.lending import OtherMemory, Tensor
from cistern.torch.parameter import grad_of


class Watch:
    """Looks at the parameters of ``model`` at the end of each step. ``tensors`` are in the store.

    ``skips``: a step skips parameters without a gradient, so that those that are trained can be frozen.
    """

    def __init__(self, model: nn.Module, tensors: Collection[Tensor], skips: bool) -> None:
        self._model = model
        self._tensors = tensors
        self._skips = skips
        self._ids = {id(tensor.parameter) for tensor in tensors}
        self._places = [
            (weakref.ref(module), name, parameter)
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None and id(parameter) in self._ids
        ]
        self._has_warned = False

    def check(self) -> None:
        """Raise RuntimeError if a parameter of the store is not as it was in ``attach``.

        Parameters that have gradients and are in no store are named in a warning, once.
        """
        for tensor in self._tensors:
            if not tensor.has_own_memory():
                raise OtherMemory(tensor.name)
            needs = tensor.parameter.requires_grad
            if needs != tensor.trains and not (tensor.trains and self._skips):
                raise RuntimeError(_REQUIRES_GRAD[tensor.trains].format(tensor.name))
        for place, name, parameter in self._places:
            module = place()
            there = (
                {} if module is None else module._parameters
            )  # A script module's has no ``get``.
            if name in there and there[name] is not None and there[name] is not parameter:
                self._refuse_other(parameter)
        if not self._has_warned and next(self._with_grads(), None) is not None:
            self._has_warned = True
            self._warn()

    def _refuse_other(self, parameter: nn.Parameter) -> NoReturn:
        name = next(tensor.name for tensor in self._tensors if tensor.parameter is parameter)
        raise RuntimeError(_OTHER_PARAMETER.format(name))

    def _with_grads(self) -> Iterator[nn.Parameter]:
        """Yield parameters that have a gradient and are in no store."""
        seen = {id(self._model)}
        modules = [self._model]
        while modules:
            module = modules.pop()
            for parameter in module._parameters.values():
                if (
                    parameter is None
                    or grad_of(parameter) is None
                    or shards.local(parameter).numel() == 0
                ):
                    continue
                if id(parameter) not in self._ids:
                    yield parameter
            for child in module._modules.values():
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    modules.append(child)

    def _warn(self) -> None:
        ids = {id(parameter) for parameter in self._with_grads()}
        names = [name for name, parameter in self._model.named_parameters() if id(parameter) in ids]
        warnings.warn(
            f"cistern: {len(names)} parameters have gradients and are in no store, because they came"
            f" to the model after attach: {', '.join(names[:5])}. The store does not train them",
            stacklevel=7,
        )


#: By whether the parameter needed a gradient in ``attach``.
_REQUIRES_GRAD = {
    False: (
        "cistern: parameter '{0}' needs a gradient, but it was frozen when attach took it, and stays"
        " so: give attach trainable=, a function that returns True for it, or call attach after"
        " requires_grad_(True)"
    ),
    True: (
        "cistern: parameter '{0}' needs no gradient any more, but it was trained when attach took it,"
        " and stays so: give attach unused='skip', or its group (param_group of attach) the lr 0"
    ),
}
_OTHER_PARAMETER = (
    "cistern: another parameter was put in the place of '{0}' after attach, as by module.weight ="
    " nn.Parameter(...). The store would go on to train the first one, which the model does not use:"
    " copy_ in a block of Store.changing, Store.write and load_state_dict change weights, and a model is"
    " changed before attach"
)
