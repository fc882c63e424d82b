# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model are the operators of a job.

A unit is a module with all modules below it. Its weights are in the pool while it runs. Units do
not overlap, and together they have all parameters of the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import nn


def find_units(model: nn.Module, by_hand: Collection[str] = ()) -> dict[str, nn.Module]:
    """Return the units of ``model`` by name, in the order of its modules.

    A unit is a module that is named in ``by_hand``, a member of a ModuleList whose members are of
    one class (such as the layers of a transformer), or else a module with parameters of its own.
    ValueError: a name of ``by_hand`` is no module of the model, or is inside of a unit.
    """
    known = dict(model.named_modules(remove_duplicate=False))
    unknown = set(by_hand) - set(known)
    if unknown:
        raise ValueError(f"cistern: units: the model has no module {', '.join(sorted(unknown))}")
    units: dict[str, nn.Module] = {}
    seen: set[nn.Module] = set()
    for name, module in _walk("", model, False, by_hand):
        if module not in seen:
            seen.add(module)
            units[name] = module
    for name in by_hand:
        for unit, module in units.items():
            if known[name] is not module and known[name] in module.modules():
                raise ValueError(_inside(name, unit, module))
    return units


def _inside(name: str, unit: str, module: nn.Module) -> str:
    own = ", ".join(name for name, _ in module.named_parameters(recurse=False))
    because = f", because it has parameters of its own ({own})" if own else ""
    outer = f"'{unit}'" if unit else "the model"
    return f"cistern: units: '{name}' is in {outer}, which is an operator as a whole{because}"


def _walk(
    name: str, module: nn.Module, is_block: bool, by_hand: Collection[str]
) -> Iterator[tuple[str, nn.Module]]:
    if next(module.parameters(), None) is None:
        return
    if name in by_hand or is_block or next(module.parameters(recurse=False), None) is not None:
        yield name, module
        return
    children = list(module.named_children())
    one_class = isinstance(module, nn.ModuleList) and len({type(c) for _, c in children}) == 1
    for child_name, child in children:
        path = f"{name}.{child_name}" if name else child_name
        inside = any(hand.startswith(path + ".") for hand in by_hand)
        yield from _walk(path, child, one_class and not inside, by_hand)
