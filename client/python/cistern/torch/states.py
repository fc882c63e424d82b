# SPDX-License-Identifier: Apache-2.0
"""States of the tensors of a store: read, written and saved."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import nn

from cistern._abi import State, Status
from cistern.calls import Path
from cistern.checkpoint import SaveResult
from cistern.errors import error_of
from cistern.job import Job
from cistern.torch import buffers, weights
from cistern.torch.declaration import Declaration
from cistern.torch.gradients import HandedIn
from cistern.torch.job_parts import JobParts
from cistern.torch.lending import Tensor
from cistern.torch.runner import Runner
from cistern.torch.writes import Writes


def _checkpoint(dir: Path, step: int) -> str:
    """Return the path of a checkpoint in the directory ``dir``."""
    return os.path.join(os.fspath(dir), f"step-{step:08}")


class States:
    """What a store does with states. ``Store`` has it, and fills it in."""

    job: Job
    model: nn.Module
    parts: JobParts
    writes: Writes
    _declaration: Declaration
    _runner: Runner
    _tensors: dict[str, Tensor]
    _tensor_of: dict[int, Tensor]

    def _settle(self) -> object:
        """End what an interrupted call of this rank has left, and return what it returns."""
        raise NotImplementedError

    def read(self, name: str, state: State = State.WEIGHT) -> torch.Tensor:
        """Return a copy of a state of the parameter ``name``.

        The weights and the gradient have the type of the parameter, the other states are fp32.

        The gradient is that of the last step. It cannot be read from the first backward pass of a
        step to the end of the step (CstError: EBUSY). KeyError: there is no such parameter.
        TypeError: ``state`` is no State. Raises what ``Job.tensor_read`` raises.
        """
        if not isinstance(state, State):
            raise TypeError(f"cistern: the state is {state!r}, and not one such as State.GRAD")
        self._settle()
        tensor = self._tensors[name]
        if state is State.GRAD and self._runner.operators.is_past_grads:
            raise error_of(
                Status.EBUSY,
                f"cistern: the gradient of '{name}' is not complete: it can be read after the step of"
                " the optimizer",
            )
        return self.parts.read(name, state).reshape(tensor.parameter.shape)

    def read_part(self, tensor: Tensor, state: State) -> torch.Tensor:
        """Return a copy of a state of what this rank has of ``tensor``. Raises what ``Job.tensor_read`` raises."""
        self._settle()
        return weights.read_state(self.job, tensor.number, state, tensor.dtype, tensor.shape)

    @property
    def handed_in(self) -> HandedIn:
        """Which parameters have a gradient that the daemon has."""
        return self._runner.operators.handed_in

    def write(self, name: str, values: torch.Tensor) -> None:
        """Write the master weights of the parameter ``name``, and so its weights, between steps.

        The moments stay. Values in bf16 say nothing of master weights that are rounded to them: where
        the parameter has them already, master weights stay, too. Values of other types are written as
        they are. ValueError: ``values`` has another shape. TypeError: it is no tensor. RuntimeError: in
        a block of ``swapped`` or ``changing``.
        """
        if not isinstance(values, torch.Tensor):
            raise TypeError(f"cistern: '{name}' is written from a tensor, not a {type(values)}")
        self._settle()
        tensor = self._tensors[name]
        part = tensor.part_of(values)
        if part is None:
            raise ValueError(
                f"cistern: '{name}' has the shape {tuple(tensor.parameter.shape)}, not"
                f" {tuple(values.shape)}"
            )
        self.writes.one(tensor, part, is_exact=values.dtype is not torch.bfloat16)
        self._runner.weights_written()

    def clear_moments(self) -> None:
        """Let all moments be zero, between steps. All ranks call this. The count of steps goes on."""
        self.writes.clear_moments()

    def weights_of(self, tensor: Tensor) -> torch.Tensor:
        """Return the weights that the model has: a copy of those of the job, or those of ``swapped``."""
        return self.read_part(tensor, State.WEIGHT) if tensor.other is None else tensor.other

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of all weights, and the buffers, as ``model.state_dict`` does."""
        return dict(self.model.state_dict())

    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None:
        """Write weights that ``state_dict`` has, between steps. The moments stay.

        Master weights of bf16 parameters stay where the weights do not change, and else become what is
        given. For an evaluation with other weights, ``swapped`` loses none. All ranks call this, and rank 0 writes its weights. Tied weights may have any one of
        their names. RuntimeError: weights are missing, are no tensors or have other shapes.

        If something else fails on rank 0, such as reading a file, the other ranks are not told: they
        go on with the weights that the store has.
        """
        self.model.load_state_dict(state_dict)

    @property
    def runner(self) -> Runner:
        return self._runner

    def number_of(self, name: str) -> int:
        """Return the number in the job of the parameter ``name``."""
        return self.parts.numbers[name]

    def trains(self, name: str) -> bool:
        """Return whether the parameter ``name`` has gradients and optimizer states in the job."""
        return self._declaration.tensors[name].trains

    def tensor_named(self, name: str) -> Tensor:
        """Return the tensor of the parameter ``name``. KeyError: there is none."""
        return self._tensors[name]

    def trained_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that are not frozen."""
        return (tensor for tensor in self._tensors.values() if tensor.trains)

    def tensor_of(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the tensor of the job that ``parameter`` is; None: it is in no store."""
        return self._tensor_of.get(id(parameter))

    def save(self, dir: Path, *, keep: int = 0, fp32_weights: bool = False) -> SaveResult:
        """Write a checkpoint to the directory ``dir``, from which transformers can load a model.

        One rank does this. ``attach`` with ``resume=dir`` goes on from it, with the same bits.
        The persistent buffers of this process are in a file of their own beside the weights.
        Raises what ``Client.save`` raises.
        """
        saved = self._settle()
        if isinstance(saved, SaveResult) and os.path.isdir(_checkpoint(dir, saved.step)):
            return saved
        of_model = buffers.in_file(self.model)
        return self.job.save(dir, keep=keep, fp32_weights=fp32_weights, buffers=of_model)
