# SPDX-License-Identifier: Apache-2.0
"""Weights of a job that another process trains, as tensors of torch.

    reader = ct.reader("run7")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for version in reader:
        version.assign(model)
        tokens = model.generate(...)
        version.check()

Nothing is copied: tensors are views of the job's memory, which is mapped for reading only. A change in
place, such as ``add_`` or ``load_state_dict`` without ``assign=True``, ends the process with SIGSEGV.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from ctypes import Array, c_char
from typing import Any

import torch
from torch import nn

from cistern.calls import Path
from cistern.mapping import ReaderTensor
from cistern.readers import ReaderOf
from cistern.torch import adapters
from cistern.torch.buffers import in_short
from cistern.torch.storage import is_lent
from cistern.torch.weights import torch_type
from cistern.versions import VersionOf


class Version(VersionOf[torch.Tensor]):
    """A version whose weights are tensors in host memory, of bf16 or fp32.

    The tensors are views of the mapped memory, which cannot be written. ``.to(device)`` copies, as it
    does with any tensor. The copy does not change with later steps, but call ``check`` after it, and
    ``torch.cuda.synchronize()`` before that if it was made with ``non_blocking=True``.
    """

    def _view(self, tensor: ReaderTensor, memory: Array[c_char]) -> torch.Tensor:
        flat = torch.frombuffer(memory, dtype=torch_type(tensor.dtype))
        return flat.view(tensor.shape)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return all weights by their names in the job. Tied weights have one name."""
        return dict(self.items())

    def assign(
        self,
        model: nn.Module,
        *,
        buffers: Mapping[str, torch.Tensor] | None = None,
        strict: bool = True,
    ) -> None:
        """Let the parameters of ``model`` be the weights of this version.

        Only pointers change. The parameters can be on the meta device, and tied parameters stay tied. They
        have the types of the job and need no gradient. A parameter that is a view of an earlier version
        stays the same object.

        Buffers are not in the job. Buffers on the meta device become those of ``buffers``, by their names in
        ``model``; a model of transformers computes the others that are not persistent.

        ``strict`` False: the job can have more tensors than the model.

        Raises ValueError if the job lacks a parameter, has one of another shape or, with ``strict``, has more
        tensors, if there is no value for a buffer, the model is in a store or the version is released. The
        model has not changed then.
        """
        self._held()
        lent = next((name for name, p in model.named_parameters() if is_lent(p)), None)
        if lent is not None:
            raise ValueError(f"cistern: parameter '{lent}' is in a store: assign to another model")
        plan = _names_in_job(self, model, strict)
        _fill_buffers(model, buffers or {}, self.reader.job)
        new: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is None or id(parameter) not in plan:
                    continue
                if id(parameter) not in new:
                    new[id(parameter)] = _pointed(parameter, self[plan[id(parameter)]])
                module._parameters[name] = new[id(parameter)]


class Reader(ReaderOf[Version]):
    __doc__ = ReaderOf.__doc__
    _kind = Version


def reader(job: str, *, socket: Path | None = None) -> Reader:
    """Return a reader of ``job``: ``Reader(job, socket=socket)``."""
    return Reader(job, socket=socket)


def _pointed(parameter: nn.Parameter, weights: torch.Tensor) -> nn.Parameter:
    """Return a parameter that is ``weights``: ``parameter`` itself, if it was so before."""
    if parameter.device == weights.device and parameter.dtype == weights.dtype:
        parameter.data = weights
        parameter.requires_grad_(False)
        return parameter
    return nn.Parameter(weights, requires_grad=False)


def _names_in_job(version: Version, model: nn.Module, strict: bool) -> dict[int, str]:
    """Return the name in the job of each parameter of ``model``, by its id. ValueError: see ``assign``."""
    tensors = {tensor.name: tensor for tensor in version.reader.tensors}
    found: dict[int, str] = {}
    names: dict[int, str] = {}
    wrong: list[str] = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
        for candidate in (name, adapters.frozen_name(model, name)):
            if candidate in tensors:
                found.setdefault(id(parameter), candidate)
    for _, parameter in model.named_parameters():
        tensor = tensors.get(found.get(id(parameter), ""))
        if tensor is not None and tensor.shape != tuple(parameter.shape):
            wrong.append(f"'{tensor.name}' is {tensor.shape}, here {tuple(parameter.shape)}")
    missing = [name for i, name in names.items() if i not in found]
    left = sorted(tensors.keys() - found.values()) if strict else []
    texts = [
        text + in_short(some)
        for text, some in (
            ("the job lacks ", missing),
            ("the model lacks ", left),
            ("shapes differ: ", wrong),
        )
        if some
    ]
    if texts:
        raise ValueError(
            f"cistern: job '{version.reader.job}' has other weights than the model: {'; '.join(texts)}"
        )
    return found


def _fill_buffers(model: nn.Module, given: Mapping[str, torch.Tensor], job: str) -> None:
    """Give buffers on the meta device memory and values. ValueError: there are none for one of them."""
    empty = [
        (prefix, module, name)
        for prefix, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.is_meta
    ]
    computed: dict[int, nn.Module] = {}
    values: list[tuple[nn.Module, str, torch.Tensor]] = []
    unknown: list[str] = []
    for prefix, module, name in empty:
        full = f"{prefix}.{name}" if prefix else name
        if full in given:
            values.append((module, name, given[full].detach()))
        elif name in module._non_persistent_buffers_set and _computes(model, module):
            computed[id(module)] = module
        else:
            unknown.append(full)
    if unknown:
        raise ValueError(
            f"cistern: buffers on the meta device have no values: {in_short(unknown)}. They are not in job"
            f" '{job}': give them to assign(buffers=), or make the model with"
            " accelerate.init_empty_weights(include_buffers=False)"
        )
    for module in computed.values():
        _compute_buffers(model, module)
    for module, name, value in values:
        module._buffers[name] = value


def _computes(model: nn.Module, module: nn.Module) -> bool:
    """Return whether a model of transformers computes the buffers of ``module`` that are not persistent.

    That writes parameters of ``module``, too, which must have no memory then.
    """
    return _owner(model, module) is not None and all(p.is_meta for p in module.parameters())


def _compute_buffers(model: nn.Module, module: nn.Module) -> None:
    for name in module._non_persistent_buffers_set:
        buffer = module._buffers[name]
        if buffer is not None and buffer.is_meta:
            module._buffers[name] = torch.empty_like(buffer, device="cpu")
    with torch.no_grad():
        _owner(model, module)._init_weights(module)


def _owner(model: nn.Module, module: nn.Module) -> Any:
    """Return the innermost model of transformers, 5 or later, that has ``module``; None: there is none."""
    transformers: Any = sys.modules.get("transformers")
    if transformers is None or int(transformers.__version__.partition(".")[0]) < 5:
        return None
    owners = [
        owner
        for owner in model.modules()
        if isinstance(owner, transformers.PreTrainedModel)
        and any(part is module for part in owner.modules())
    ]
    return owners[-1] if owners else None
