# SPDX-License-Identifier: Apache-2.0
"""States of the job as tensors of torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from cistern._abi import Dtype, State, Status
from cistern.errors import CstError
from cistern.job import Job
from cistern.memory import is_bf16
from cistern.torch import shards

_MOST_DIMS = 8  # As cst_tensor of libcistern.
_SLICE = 1 << 20  # Elements that are converted at a time.


def type_in_job(parameter: torch.Tensor) -> Dtype:
    """Return the type of ``parameter`` in a job: fp32 stays, all others are bf16 there."""
    return Dtype.FP32 if parameter.dtype == torch.float32 else Dtype.BF16


def torch_type(dtype: Dtype) -> torch.dtype:
    """Return the type of torch for ``dtype``."""
    return torch.float32 if dtype == Dtype.FP32 else torch.bfloat16


def write_master(job: Job, number: int, values: torch.Tensor) -> None:
    """Write ``values``, of any floating type, to the master weights of a tensor of the job.

    The weights become those, rounded if the tensor is bf16. A frozen tensor has only these.
    """
    write_state(job, number, State.MASTER, values)


def check_readable(values: Iterable[torch.Tensor]) -> None:
    """Raise RuntimeError if one of ``values`` cannot be written, such as one on the meta device."""
    for value in values:
        value.detach().reshape(-1)[:0].to("cpu", torch.float32)


def write_state(job: Job, number: int, state: State, values: torch.Tensor) -> None:
    """Write ``values``, of any floating type, to master weights or moments of a tensor of the job."""
    flat = values.detach().reshape(-1)
    for first in range(0, flat.numel(), _SLICE):
        part = flat[first : first + _SLICE].to("cpu", torch.float32).contiguous()
        job.write_from(number, state, first, part.numel(), part.data_ptr())


def write_weights(job: Job, number: int, values: torch.Tensor) -> int:
    """Write ``values`` to the weights of a bf16 tensor of the job that is trained.

    Master weights become the values, except where the weights have them already: master weights, which
    say more, stay there. Returns the number of master weights that have lost more than bf16 can say.
    """
    flat, n_lost = values.detach().reshape(-1), 0
    for first in range(0, flat.numel(), _SLICE):
        part = flat[first : first + _SLICE].to("cpu", torch.float32).contiguous()
        weight = _read_part(job, number, State.WEIGHT, first, part.numel(), torch.bfloat16).float()
        stays = _bits(part) == _bits(weight)
        if bool(stays.all()):
            continue
        master = _read_part(job, number, State.MASTER, first, part.numel(), torch.float32)
        n_lost += int((~stays & (_bits(master) != _bits(weight))).sum())
        part = torch.where(stays, master, part)
        job.write_from(number, State.MASTER, first, part.numel(), part.data_ptr())
    return n_lost


def has_weights(job: Job, number: int, values: torch.Tensor) -> bool:
    """Return whether a tensor of the job has the weights ``values``, in its type, bit for bit."""
    flat = values.detach().reshape(-1)
    for first in range(0, flat.numel(), _SLICE):
        part = flat[first : first + _SLICE].to("cpu").contiguous()
        there = _read_part(job, number, State.WEIGHT, first, part.numel(), part.dtype)
        if not torch.equal(_bits(part), _bits(there)):
            return False
    return True


def clear_moments(job: Job, number: int, n_elems: int) -> None:
    """Write zeros to the moments of a tensor of the job that is trained."""
    zeros = torch.zeros(min(n_elems, _SLICE), dtype=torch.float32, device="cpu")
    for state in (State.EXP_AVG, State.EXP_AVG_SQ):
        for first in range(0, n_elems, _SLICE):
            try:
                n = min(_SLICE, n_elems - first)
                job.write_from(number, state, first, n, zeros.data_ptr())
            except CstError as error:
                if state is State.EXP_AVG or error.status != Status.EUNSUPPORTED:
                    raise
                return  # The optimizer has one moment.


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int32 if values.itemsize == 4 else torch.int16)


def _read_part(
    job: Job, number: int, state: State, first: int, n: int, dtype: torch.dtype
) -> torch.Tensor:
    out = torch.empty(n, dtype=dtype, device="cpu")
    job.read_to(number, state, first, n, out.data_ptr())
    return out


def has_second_moment(job: Job, number: int) -> bool:
    """Return whether the optimizer of a trained tensor has two moments."""
    try:
        _read_part(job, number, State.EXP_AVG_SQ, 0, 1, torch.float32)
    except CstError as error:
        if error.status != Status.EUNSUPPORTED:
            raise
        return False
    return True


def read_state(
    job: Job, number: int, state: State, dtype_in_job: Dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    """Return a copy of a state of a tensor of the job, in host memory."""
    dtype = torch.bfloat16 if is_bf16(state, dtype_in_job) else torch.float32
    out = torch.empty(shape, dtype=dtype, device="cpu")  # Whatever the default device is.
    job.read_to(number, state, 0, out.numel(), out.data_ptr())
    return out


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield each parameter that has elements once. TypeError: its type cannot be in a store."""
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise TypeError(
                f"cistern: parameter '{name}' has no shape yet: run the lazy module once before"
            )
        if shards.local(parameter).numel() == 0:
            continue
        if not parameter.is_floating_point() or shards.local(parameter).layout != torch.strided:
            raise TypeError(
                f"cistern: parameter '{name}' is {parameter.dtype}, {parameter.layout}; a store has"
                " dense floating-point parameters"
            )
        if parameter.ndim > _MOST_DIMS:
            raise TypeError(
                f"cistern: parameter '{name}' has {parameter.ndim} dimensions, and a tensor of a job at"
                f" most {_MOST_DIMS}: give the parameter fewer, and let the module call view"
            )
        yield name, parameter


def bytes_in_pool(model: nn.Module) -> int:
    """Return the size of all weights in the types that they have in a pool."""
    return sum(
        shards.local(parameter).numel() * torch_type(type_in_job(parameter)).itemsize
        for _, parameter in named_parameters(model)
    )


def check_no_shared_memory(parameters: list[tuple[str, nn.Parameter]]) -> None:
    """Raise TypeError if two parameters are views of the same memory."""
    owner: dict[int, str] = {}
    for name, parameter in parameters:
        if parameter.is_meta:
            continue
        first = owner.setdefault(shards.local(parameter).untyped_storage().data_ptr(), name)
        if first != name:
            raise TypeError(f"cistern: parameters '{first}' and '{name}' share memory")


def without_meta(model: nn.Module) -> None:
    """Replace parameters on the meta device by parameters without memory, ties kept."""
    new: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            if id(parameter) not in new:
                dtype = torch_type(type_in_job(parameter))
                shape = shards.local(parameter).shape if shards.is_shard(parameter) else (0,)
                empty = torch.empty(1, dtype=dtype, device="cpu").expand(shape)
                alike = shards.like(parameter, empty)
                new[id(parameter)] = nn.Parameter(alike, parameter.requires_grad)
            module._parameters[name] = new[id(parameter)]


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Move the buffers of ``model`` to ``device``."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
