# SPDX-License-Identifier: Apache-2.0
"""The stages of a pipeline that one rank has, as one model with the names of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from cistern.torch.declaration import Declaration
    from cistern.torch.store import Store

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


class Absent(nn.Identity):
    """Stands for a module of the whole model that other ranks have."""


class Stages(nn.Module):
    """A model of the modules of ``stages``, by their names. The program calls the stages, and not this."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages = tuple(
            stages
        )  # A tuple is no module, so that names have no number before them.


class Divided(nn.Module):
    """Stages of a rank that hand in gradients of their part of a loss, so that the sum of all ranks is its gradient."""

    n_passes: int  #: Backward passes of a step.
    device: torch.device | None  #: On which the ranks are connected; None: on any.

    def declared(self, declaration: Declaration) -> Declaration:
        """Return what the job is told, of the ``declaration`` of the model."""
        return declaration

    @property
    def model(self) -> nn.Module:
        """What ``joined`` has made of the stages."""
        raise NotImplementedError

    def get_submodule(self, target: str) -> nn.Module:
        """Return that of the model, of which ``model`` can be the name of another module."""
        return self.model.get_submodule(target)

    def attached(self, store: Store) -> None:
        """Note that the weights are in ``store`` now."""
        raise NotImplementedError


def joined(stages: Sequence[nn.Module]) -> nn.Module:
    """Return one model with all modules of ``stages``, which belong to one rank.

    Modules of stages that have the same name are one module, or lists of modules, or one of them stands
    for an absent module. ValueError: they are different modules, or a stage of several has parameters of its
    own. TypeError: a stage is no module.
    """
    if len(stages) == 1:
        return stages[0]
    for i, stage in enumerate(stages):
        if not isinstance(stage, nn.Module):
            raise TypeError(f"cistern: stage {i} is a {type(stage)}, and not a torch.nn.Module")
    whole = Stages(stages)
    for stage in stages:
        if stage._parameters:
            name = next(iter(stage._parameters))
            raise ValueError(
                f"cistern: parameter '{name}' is in a stage itself: of several stages, all parameters are in"
                " modules that they call"
            )
        whole._buffers.update(stage._buffers)
        _graft(whole, stage, "")
    return whole


def called(model: nn.Module) -> list[nn.Module]:
    """Return the modules that the program calls: the stages of ``model``, or what is in a list, or itself."""
    if isinstance(model, Stages):
        return list(model.stages)
    if isinstance(model, _CONTAINERS):
        return [stage for child in model.children() for stage in called(child)]
    return [model]


def _graft(into: nn.Module, module: nn.Module, path: str) -> None:
    """Give ``into`` the modules in ``module``, whose name is ``path``."""
    for name, child in module._modules.items():
        there = into._modules.get(name)
        if child is None or child is there or (there is not None and isinstance(child, Absent)):
            continue
        if there is None or isinstance(there, Absent):
            into._modules[name] = child
            continue
        full = f"{path}.{name}" if path else name
        if type(there) is not type(child) or there._parameters or child._parameters:
            raise ValueError(
                f"cistern: two stages of this rank have different modules '{full}': the stages of a pipeline"
                " have the names of the whole model, in which modules have different names"
            )
        # A module of this class for the names alone; each stage goes on to call its own.
        both = type(there).__new__(type(there))
        nn.Module.__init__(both)
        both._buffers.update(there._buffers)
        both._modules.update(there._modules)
        _graft(both, child, full)
        into._modules[name] = both
