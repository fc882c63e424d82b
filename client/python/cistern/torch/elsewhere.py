# SPDX-License-Identifier: Apache-2.0
"""What is told of a parameter that is used elsewhere than in its module."""

from __future__ import annotations

from torch import nn

from cistern.torch.declaration import DeclaredOperator
from cistern.torch.units import caller_of, other_method


def refusal(model: nn.Module, name: str, unit: str, operator: DeclaredOperator) -> str:
    """Return the text of the error for the parameter ``name`` of the module ``unit``."""
    module = f"'{unit}'" if unit else "the model"
    return (
        f"cistern: parameter '{name}' used outside of its module. Its weights are in memory only while"
        f" {module} runs{_and_how(unit, operator)}. {_remedy(model, name, unit, operator)} Store.read and"
        f" the state_dict of the whole model return copies. In a block of Store.changing('{name}') it can be"
        " changed in place; Store.write and load_state_dict of the whole model change weights, too."
    )


def _and_how(unit: str, operator: DeclaredOperator) -> str:
    return "" if operator.is_whole else ", and not while a module in it runs that has weights"


def _remedy(model: nn.Module, name: str, unit: str, operator: DeclaredOperator) -> str:
    method = other_method(model.get_submodule(unit)) if not operator.methods else ""
    if method:
        where = f"{unit}.{method}" if unit else method
        module = f"'{unit}'" if unit else "the model"
        return (
            f"{_named(model, name, unit, operator)} If a method of {module} other than forward uses it,"
            f" name the method: units=['{where}']."
        )
    return _named(model, name, unit, operator)


def _named(model: nn.Module, name: str, unit: str, operator: DeclaredOperator) -> str:
    if not operator.is_whole:
        inside = f"If such a module uses '{name}', give attach units=['{unit}']."
        return inside if not unit else f"{inside} {_OTHERS}"
    if not unit:
        return (
            "It was used when the model did not run, such as by a loss with a penalty on weights: call in"
            " the forward of the model what uses it."
        )
    caller = caller_of(model, unit)
    who = f"'{caller}'" if caller else "the model itself"
    return f"If {who} uses '{name}' without a call of '{unit}', give attach units=['{caller}']. {_OTHERS}"


_OTHERS = (
    "If another module uses it, name a module that contains both in units= of attach ('' is the whole"
    " model)."
)
