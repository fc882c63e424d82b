# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model are the operators of a job.

A unit is a module with all modules below it. Its weights are in the pool while it runs. A module
that has parameters of its own, and blocks below it, is a unit with its own parameters alone, and the
modules below it are divided into units of their own. Together the units have all parameters of the
model.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from torch import nn

# Classes without a forward pass. The parameters in a list are those of the module that has it.
_LISTS = (nn.ParameterList, nn.ParameterDict)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, *_LISTS)


class Found(NamedTuple):
    """A unit: a module, and those of its parameters that are in the pool while it runs."""

    module: nn.Module
    parameters: list[nn.Parameter]
    is_whole: bool  #: It has all parameters below it. Else other units run while it runs.


def find_units(model: nn.Module, by_hand: Collection[str] = ()) -> dict[str, Found]:
    """Return the units of ``model`` by name, in the order of its modules.

    A unit is a module that is named in ``by_hand``, or a block: a member of a ModuleList or a
    Sequential whose members are of one class, such as the layers of a transformer. Any other module
    with parameters of its own is a unit, too: without the modules below it if blocks or modules of
    ``by_hand`` are among these, and else with them.
    ValueError: a name of ``by_hand`` is no module of the model, or is inside of a unit.
    """
    known = dict(model.named_modules(remove_duplicate=False))
    unknown = set(by_hand) - set(known)
    if unknown:
        raise ValueError(f"cistern: units: the model has no module {', '.join(sorted(unknown))}")
    units: dict[str, Found] = {}
    seen: set[nn.Module] = set()
    for name, found in _walk("", model, False, by_hand):
        if found.module not in seen:
            seen.add(found.module)
            units[name] = found
    for name in by_hand:
        for unit, found in units.items():
            module = found.module
            if known[name] is not module and found.is_whole and known[name] in module.modules():
                outer = f"'{unit}'" if unit else "the model"
                raise ValueError(
                    f"cistern: units: '{name}' is in {outer}, which is an operator as a whole"
                )
    return units


def with_methods(
    model: nn.Module, by_hand: Collection[str]
) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Return the modules that ``by_hand`` names, and methods that it names, such as "vit.forward_features".

    These are by the name of their module, which is then named, too.
    """
    known = dict(model.named_modules(remove_duplicate=False))
    modules: dict[str, tuple[str, ...]] = {}
    for name in by_hand:
        owner, _, method = name.rpartition(".")
        if name not in known and callable(getattr(type(known.get(owner)), method, None)):
            modules[owner] = (*modules.get(owner, ()), method)
        else:
            modules.setdefault(name, ())
    return list(modules), {name: methods for name, methods in modules.items() if methods}


def other_method(module: nn.Module) -> str:
    """Return a method of ``module`` that computes like ``forward``, as far as names tell; "": none."""
    kind = type(module)
    found = [
        name
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and name not in ("forward", "reset_parameters")
        if not name.startswith("_") and not hasattr(nn.Module, name)
    ]
    if kind.__module__.startswith("torch.") or not found:
        return ""
    return min(found, key=lambda name: re.search("forward|encode|decode|features", name) is None)


def caller_of(model: nn.Module, name: str) -> str:
    """Return the name of the module that calls the module ``name``, as far as names tell."""
    caller = name.rpartition(".")[0]
    while caller and isinstance(model.get_submodule(caller), _CONTAINERS):
        caller = caller.rpartition(".")[0]
    return caller


def _walk(
    name: str, module: nn.Module, is_block: bool, by_hand: Collection[str]
) -> Iterator[tuple[str, Found]]:
    parameters = list(module.parameters())
    if not parameters:
        return
    own = _own_parameters(module)
    divides = _has_blocks(module) or _has_inside(name, by_hand)
    if name in by_hand or is_block or (own and not divides):
        yield name, Found(module, parameters, is_whole=True)
        return
    if own:
        yield name, Found(module, own, is_whole=False)
    of_blocks = _is_of_blocks(module)
    for child_name, child in module.named_children():
        if not isinstance(child, _LISTS):
            path = f"{name}.{child_name}" if name else child_name
            yield from _walk(path, child, of_blocks and not _has_inside(path, by_hand), by_hand)


def _own_parameters(module: nn.Module) -> list[nn.Parameter]:
    own = list(module.parameters(recurse=False))
    for child in module.children():
        if isinstance(child, _LISTS):
            own += child.parameters()
    return own


def _is_of_blocks(module: nn.Module) -> bool:
    """Return whether the members of ``module`` are blocks.

    The members of a Sequential can be stages, which have blocks themselves.
    """
    if not isinstance(module, (nn.ModuleList, nn.Sequential)):
        return False
    kinds = {type(child) for child in module}
    if len(kinds) != 1 or kinds & {*_CONTAINERS}:
        return False
    if isinstance(module, nn.ModuleList):
        return True
    return nn.Sequential not in kinds and not any(map(_has_blocks, module))


def _has_blocks(module: nn.Module) -> bool:
    """Return whether blocks with parameters are in ``module``, at any depth."""
    return any(
        _is_of_blocks(inner) and next(inner.parameters(), None) is not None
        for inner in module.modules()
    )


def _has_inside(name: str, by_hand: Collection[str]) -> bool:
    """Return whether ``by_hand`` names a module inside of the module ``name``."""
    prefix = f"{name}." if name else ""
    return any(hand.startswith(prefix) and hand != name for hand in by_hand)
