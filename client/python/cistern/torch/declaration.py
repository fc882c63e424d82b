# SPDX-License-Identifier: Apache-2.0
"""What a job is told about a model: its tensors and operators."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from torch import nn

from cistern._abi import Dtype, TensorUpdate
from cistern._abi import Optimizer as Rule
from cistern.torch import adapters, weights
from cistern.torch.storage import is_lent
from cistern.torch.units import find_units

_Member = TypeVar("_Member", bound=IntEnum)

GroupOf = Callable[[str, nn.Parameter], int]
IsMatrix = Callable[[str, nn.Parameter], bool]


class DeclaredTensor(NamedTuple):
    """A parameter as a tensor of the job."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    trains: bool
    group: int  #: Group of the optimizer.
    update: TensorUpdate  #: By which rule a job of Muon updates it.
    file_names: tuple[str, ...]  #: What files of other programs call it, if not ``name``.


class DeclaredOperator(NamedTuple):
    """A unit as an operator of the job."""

    name: str
    module: nn.Module
    parameters: list[str]
    flops: float  #: Of the forward pass of a micro-batch; 0: unknown.


class Declaration(NamedTuple):
    """What a job is told about a model."""

    tensors: dict[str, DeclaredTensor]  #: By the name of the parameter in the model.
    operators: dict[str, DeclaredOperator]  #: By the name of the module, in its order.
    tokens: int  #: Of a micro-batch of one rank; 0: unknown.
    activations: int = 0  #: Bytes that the program allocates on its GPU itself; 0: unknown.

    def to_json(self, name: str, world: int) -> str:
        """Return the file that ``cistern plan`` reads, for ``world`` ranks."""
        return json.dumps(
            {
                "name": name,
                "world": world,
                "tokens": self.tokens,
                "tensors": [_tensor_json(tensor) for tensor in self.tensors.values()],
                "operators": [
                    {
                        "name": operator.name,
                        "tensors": [self.tensors[p].name for p in operator.parameters],
                        "flops": operator.flops,
                    }
                    for operator in self.operators.values()
                ],
            },
            indent=1,
        )


def in_rule(optimizer: Rule | str) -> Rule:
    """Return an optimizer, which can be given by its name. ValueError: there is no such name."""
    return member(Rule, optimizer, "optimizer")


def member(kind: type[_Member], value: _Member | str, what: str) -> _Member:
    """Return a member of ``kind``, which can be given by its name. ValueError: no such name."""
    if isinstance(value, kind):
        return value
    found = kind.__members__.get(str(value).upper())
    if found is None:
        names = ", ".join(known.name.lower() for known in kind)
        raise ValueError(f"cistern: there is no {what} '{value}' (there are: {names})")
    return found


def declare(
    model: nn.Module,
    units: Collection[str],
    param_group: GroupOf | None,
    tokens: int,
    muon: IsMatrix | None = None,
) -> Declaration:
    """Return what a job is told about ``model``, which can be on the meta device.

    The arguments are those of ``attach``. Raises TypeError if they have other types or a parameter
    cannot be in a store, and ValueError if there are none, a name of ``units`` is unknown, a name is not
    in printable ASCII, or the model is in a store already.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"cistern: attach is given a {type(model)}, and not a torch.nn.Module")
    if isinstance(units, str):
        raise TypeError(f"cistern: units is {units!r}: a list of names, such as [{units!r}]")
    parameters = list(weights.named_parameters(model))
    if not parameters:
        raise ValueError("cistern: the model has no parameters")
    for name, parameter in parameters:
        if is_lent(parameter):
            raise ValueError(
                f"cistern: parameter '{name}' is in a store already: a model is attached once"
            )
        if not name.isascii() or not name.isprintable():
            raise ValueError(
                f"cistern: parameter '{name}': a job has names in printable ASCII alone"
            )
    weights.check_no_shared_memory(parameters)
    files = adapters.external_names(model)
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for parameter in module.parameters(recurse=False)
    }
    tensors = {
        name: DeclaredTensor(
            adapters.name_in_job(model, name, parameter),
            tuple(parameter.shape) or (1,),
            weights.type_in_job(parameter),
            parameter.requires_grad,
            0 if param_group is None else param_group(name, parameter),
            _update_of(name, parameter, muon, embeddings),
            (files[name],) if name in files else (),
        )
        for name, parameter in parameters
    }
    names = {id(parameter): name for name, parameter in parameters}
    operators = {}
    for unit, module in find_units(model, units).items():
        used = [names[id(p)] for p in module.parameters() if id(p) in names]
        if used:
            operators[unit] = DeclaredOperator(
                unit or "model", module, used, 2.0 * tokens * _multiplied(module)
            )
    return Declaration(tensors, operators, tokens)


def _update_of(
    name: str, parameter: nn.Parameter, muon: IsMatrix | None, embeddings: Collection[int]
) -> TensorUpdate:
    """Return how a job of Muon updates a parameter. ``embeddings`` are ids of parameters.

    By default it finds the hidden matrices itself, which are none of the first and the last unit.
    There can be embeddings in other units, too.
    """
    if muon is not None:
        return TensorUpdate.MUON if muon(name, parameter) else TensorUpdate.ADAMW
    return TensorUpdate.ADAMW if id(parameter) in embeddings else TensorUpdate.AUTO


def _multiplied(unit: nn.Module) -> int:
    """Return how many elements of weights each token is multiplied with.

    Matrices and larger weights count, except the tables of embeddings.
    """
    return sum(
        math.prod(parameter.shape)
        for module in unit.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim >= 2
    )


def _tensor_json(tensor: DeclaredTensor) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tensor.name, "shape": tensor.shape}
    if tensor.dtype == Dtype.FP32:
        described["dtype"] = "fp32"
    if not tensor.trains:
        described["pattern"] = "frozen"
    if tensor.update is not TensorUpdate.AUTO:
        described["update"] = tensor.update.name.lower()
    return described
