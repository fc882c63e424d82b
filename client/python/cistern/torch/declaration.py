# SPDX-License-Identifier: Apache-2.0
"""What a job is told about a model: its tensors and operators."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from cistern import checks
from cistern._abi import MAX_PARAM_GROUPS, Dtype, TensorUpdate
from cistern.torch import adapters, parts, shards, weights
from cistern.torch.storage import is_lent
from cistern.torch.units import Found, find_units, with_methods

if TYPE_CHECKING:
    from cistern.torch.parallel.proxy import Profile

GroupOf = Callable[[str, nn.Parameter], int]
IsMatrix = Callable[[str, nn.Parameter], bool]
IsTrainable = Callable[[str, nn.Parameter], bool]


class DeclaredTensor(NamedTuple):
    """A parameter as a tensor of the job."""

    name: str
    box: shards.Box  #: What this rank has of it.
    dtype: Dtype
    trains: bool
    group: int  #: Group of the optimizer.
    update: TensorUpdate  #: By which rule a job of Muon updates it.
    file_names: tuple[str, ...]  #: What files of other programs call it, if not ``name``.
    place: shards.Place | None  #: On a mesh of ranks; None: it is no DTensor.
    sample: tuple[float, ...] = ()  #: Of its values; (): it is on the meta device.


class DeclaredOperator(NamedTuple):
    """A unit as an operator of the job."""

    name: str
    parameters: list[str]
    flops: float  #: Of the forward pass of a micro-batch; 0: unknown.
    is_whole: bool  #: It has all parameters of the module. Else modules in it are other units.
    methods: tuple[str, ...] = ()  #: Their calls are runs of the module, too.
    begins_stage: bool = False  #: It is the first one of a stage of a model that is dispatched.


class Edge(NamedTuple):
    """An edge of all ranks."""

    name: str
    slot_bytes: int
    n_slots: int


class Declaration(NamedTuple):
    """What a job is told about a model."""

    tensors: dict[str, DeclaredTensor]  #: By the name of the parameter in the model.
    operators: dict[str, DeclaredOperator]  #: By the name of the module, in its order.
    modules: dict[str, nn.Module]  #: Those that are operators, by their names.
    tokens: int  #: Of a micro-batch of one rank; 0: unknown.
    meshes: tuple[shards.Place, ...] = ()  #: Over which parameters are divided.
    activations: int = 0  #: Bytes that the program allocates on its GPU itself; 0: unknown.
    edges: tuple[Edge, ...] = ()  #: Of a model that is dispatched; else there are none.

    def activation_bytes(self, unit: str) -> int:
        """Return what ``unit`` declares: all activations for the last one, since only the sum counts."""
        return self.activations if unit == next(reversed(self.operators)) else 0

    def rank(self) -> parts.Rank:
        """Return what this rank tells the others."""
        return parts.Rank(
            {
                name: parts.Held(
                    t.name,
                    t.box,
                    t.dtype,
                    t.trains,
                    t.group,
                    t.update,
                    t.file_names,
                    t.place,
                    t.sample,
                )
                for name, t in self.tensors.items()
            },
            {
                unit: parts.Run(
                    o.name,
                    tuple(o.parameters),
                    o.flops,
                    self.activation_bytes(unit),
                    o.begins_stage,
                )
                for unit, o in self.operators.items()
            },
            self.meshes,
        )

    def first_units(self) -> dict[str, str]:
        """Return the first unit of each parameter, by its name."""
        found: dict[str, str] = {}
        for unit, operator in self.operators.items():
            for name in operator.parameters:
                found.setdefault(name, unit)
        return found

    def to_json(self, name: str, world: int, profile: Profile | None = None) -> str:
        """Return the file that ``cistern plan`` reads, for ``world`` ranks.

        With ``profile``, of the modules of this declaration, operators are in the order in which they run.
        """
        described = {
            "name": name,
            "world": world,
            "tokens": self.tokens,
            "tensors": [_tensor_json(tensor) for tensor in self.tensors.values()],
            "operators": [
                {
                    "name": self.operators[unit].name,
                    "tensors": [self.tensors[p].name for p in self.operators[unit].parameters],
                    **self._costs(unit, profile),
                }
                for unit in (self.operators if profile is None else profile.units)
            ],
        }
        if profile is not None:
            described["heads"] = profile.heads
        return json.dumps(described, indent=1)

    def _costs(self, unit: str, profile: Profile | None) -> dict[str, Any]:
        if profile is None:
            flops, kept = self.operators[unit].flops, self.activation_bytes(unit)
            return {"flops": flops, "activation_bytes": kept}
        cost = profile.units[unit]
        return {
            "flops": cost.flops,
            "activation_bytes": cost.kept_bytes,
            "out_bytes": cost.out_bytes,
            "tp_bytes": cost.sum_bytes,
        }


def declare(
    model: nn.Module,
    units: Collection[str],
    param_group: GroupOf | None,
    tokens: int,
    muon: IsMatrix | None = None,
    trainable: IsTrainable | None = None,
) -> Declaration:
    """Return what a job is told about ``model``, which can be on the meta device.

    The arguments are those of ``attach``. Raises TypeError if they have other types, a parameter
    cannot be in a store, or a unit was compiled by torch.jit.script. Raises ValueError if there are
    no parameters, a number is out of range, a name of ``units`` is unknown, a name is not in
    printable ASCII, the forward of a unit yields, or the model is in a store already.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"cistern: model is a {type(model)}, and not a torch.nn.Module")
    _check_names(units)
    functions = {"param_group": param_group, "muon": muon, "trainable": trainable}
    for argument, function in functions.items():
        if function is not None and not callable(function):
            checks.refuse_type(argument, function, "a function of a name and a parameter")
    tokens = checks.integer("tokens", tokens, 0, (1 << 63) - 1)
    parameters = list(weights.named_parameters(model))
    if not parameters:
        raise ValueError("cistern: the model has no parameters")
    for name, parameter in parameters:
        if is_lent(parameter):
            raise ValueError(
                f"cistern: parameter '{name}' is in a store already: a model is attached once. Models that"
                " share parameters are attached together, such as"
                " nn.ModuleDict({'teacher': teacher, 'student': student})"
            )
        if not name.isascii() or not name.isprintable():
            raise ValueError(
                f"cistern: parameter '{name}': a job has names in printable ASCII alone"
            )
    shards.check_wrappers(model.modules())
    weights.check_no_shared_memory(parameters)
    files = adapters.external_names(model)
    units, methods = with_methods(model, units)
    found_units = find_units(model, units)
    not_hidden = _not_hidden(model, found_units.values())
    tensors = {
        name: DeclaredTensor(
            adapters.name_in_job(model, name, parameter),
            shards.box_of(name, parameter),
            weights.type_in_job(parameter),
            parameter.requires_grad or (trainable is not None and bool(trainable(name, parameter))),
            _group_of(name, parameter, param_group),
            _update_of(name, parameter, muon, not_hidden),
            (files[name],) if name in files else (),
            shards.place_of(parameter),
            shards.sample_of(parameter),
        )
        for name, parameter in parameters
    }
    names = {id(parameter): name for name, parameter in parameters}
    operators, modules = {}, {}
    for unit, found in found_units.items():
        used = [names[id(p)] for p in found.parameters if id(p) in names]
        if used:
            _check_can_be_unit(unit, found.module)
            modules[unit] = found.module
            operators[unit] = DeclaredOperator(
                unit or _name_of_root(found_units),
                used,
                2.0 * tokens * _multiplied(found),
                found.is_whole,
                methods.get(unit, ()),
            )
    places = dict.fromkeys(map(shards.place_of, model.parameters()))
    meshes = tuple(place for place in places if place is not None)
    return Declaration(tensors, operators, modules, tokens, meshes)


def _check_names(units: Any) -> None:
    """Raise TypeError unless ``units`` are names of modules."""
    if isinstance(units, str):
        checks.refuse_type("units", units, f"a list of names, such as [{units!r}],")
    if not isinstance(units, Collection) or not all(isinstance(name, str) for name in units):
        checks.refuse_type("units", units, "a list of names of modules")


def _check_can_be_unit(unit: str, module: nn.Module) -> None:
    """Raise TypeError or ValueError if no hook is called before or after the code of ``forward``."""
    which = f"module '{unit}'" if unit else "the model"
    of_scripts: Any = torch.jit
    if isinstance(module, of_scripts.RecursiveScriptModule):
        raise TypeError(
            f"cistern: {which} was compiled by torch.jit.script, which has no hooks: leave it as it was before,"
            " or name a module that calls it and was not compiled in units= of attach ('' is the whole"
            " model)"
        )
    if not inspect.isgeneratorfunction(module.forward):
        return
    way_out = (
        "name a module that calls it and does not yield in units= of attach ('' is the whole model)"
        if unit
        else "give its parameters to modules that it calls and that do not yield"
    )
    raise ValueError(
        f"cistern: forward of {which} is a generator (it has a yield): its code runs after the call has"
        f" ended, when its weights are not in memory any more. Let forward return a list, or {way_out}"
    )


def _group_of(name: str, parameter: nn.Parameter, param_group: GroupOf | None) -> int:
    """Return the group of a parameter. TypeError, ValueError: ``param_group`` returns none."""
    group: Any = 0 if param_group is None else param_group(name, parameter)
    what = f"the group that param_group returns for parameter '{name}'"
    group = int(group) if isinstance(group, bool) else group
    return checks.integer(what, group, 0, MAX_PARAM_GROUPS - 1)


def _name_of_root(units: Collection[str]) -> str:
    """Return what the job calls the whole model, which torch gives no name."""
    return "model" if "model" not in units else "the model"


def _not_hidden(model: nn.Module, units: Collection[Found]) -> set[int]:
    """Return the ids of parameters that Muon is not to update, and that no job can know of.

    A job leaves out what its first and its last operator use. There can be embeddings in other
    units, too. If units nest, the first one can be a model with its own parameters alone, such as a
    scale, and the embedding and the head are in the units after it.
    """
    found = [
        parameter
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for parameter in module.parameters(recurse=False)
    ]
    whole = [unit for unit in units if unit.is_whole]
    if len(whole) < len(units):
        for unit in (*whole[:1], *whole[-1:], *(unit for unit in units if not unit.is_whole)):
            found += unit.parameters
    return set(map(id, found))


def _update_of(
    name: str, parameter: nn.Parameter, muon: IsMatrix | None, not_hidden: Collection[int]
) -> TensorUpdate:
    """Return how a job of Muon updates a parameter. ``not_hidden`` are ids of parameters.

    By default the job finds the hidden matrices itself, but for these parameters.
    """
    if muon is not None:
        return TensorUpdate.MUON if muon(name, parameter) else TensorUpdate.ADAMW
    return TensorUpdate.ADAMW if id(parameter) in not_hidden else TensorUpdate.AUTO


def _multiplied(unit: Found) -> int:
    """Return how many elements of weights each token is multiplied with.

    Matrices and larger weights count, except the tables of embeddings.
    """
    modules = unit.module.modules() if unit.is_whole else ()
    tables = {
        id(parameter)
        for module in modules
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return sum(
        math.prod(shards.local(parameter).shape)
        for parameter in unit.parameters
        if parameter.ndim >= 2 and id(parameter) not in tables
    )


def _tensor_json(tensor: DeclaredTensor) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tensor.name, "shape": tensor.box.shape}
    if tensor.dtype == Dtype.FP32:
        described["dtype"] = "fp32"
    if not tensor.trains:
        described["pattern"] = "frozen"
    if tensor.update is not TensorUpdate.AUTO:
        described["update"] = tensor.update.name.lower()
    return described
