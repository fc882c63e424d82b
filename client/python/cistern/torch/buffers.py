# SPDX-License-Identifier: Apache-2.0
"""Buffers of a model, such as the statistics of BatchNorm, in files beside checkpoints.

A buffer is no tensor of the job: each process has its own. Persistent buffers are those that are in
the model's state_dict. Their names in files are those of ``adapters.name_in_job``.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import warnings
from collections.abc import Iterator
from glob import escape, glob
from typing import Any

import torch
from torch import nn

from cistern.torch import adapters

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def _persistent(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the name in files, the module and the name in the module of each persistent buffer."""
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                full: Any = f"{path}.{name}" if path else name
                yield adapters.name_in_job(model, full, buffer), module, name


def copies(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies in host memory of the persistent buffers, by their names in files."""
    found = {}
    for full, module, name in _persistent(model):
        buffer: Any = module._buffers[name]
        found[full] = buffer.detach().to("cpu", copy=True).contiguous()
    return found


def in_file(model: nn.Module) -> bytes | None:
    """Return the contents of a file of safetensors with the persistent buffers; None: there are none."""
    buffers = copies(model)
    unknown = [name for name, buffer in buffers.items() if buffer.dtype not in _NAMES]
    if unknown:
        warnings.warn(
            f"cistern: buffers of this type are not saved: {in_short(unknown)}", stacklevel=3
        )
    header: dict[str, Any] = {}
    data: list[bytes] = []
    end = 0
    for name, buffer in buffers.items():
        if name in unknown:
            continue
        data.append(ctypes.string_at(buffer.data_ptr(), buffer.nbytes) if buffer.nbytes else b"")
        begin, end = end, end + buffer.nbytes
        header[name] = {
            "dtype": _NAMES[buffer.dtype],
            "shape": list(buffer.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data) if buffers else None


def _read(path: str, wanted: set[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of the file ``path`` of safetensors whose names are ``wanted``."""
    found = {}
    with open(path, "rb") as file:
        n_bytes = int.from_bytes(file.read(8), "little")
        if n_bytes > os.fstat(file.fileno()).st_size - 8:
            raise ValueError(f"cistern: '{path}' is no file of safetensors, or is not whole")
        header = json.loads(file.read(n_bytes))
        for name in wanted & header.keys():
            entry = header[name]
            begin, end = entry["data_offsets"]
            shape = torch.Size(entry["shape"])
            dtype = _TYPES.get(entry["dtype"])
            if dtype is None or math.prod(shape) * dtype.itemsize != end - begin:
                raise ValueError(f"cistern: '{name}' in '{path}' is of type {entry['dtype']}")
            file.seek(8 + n_bytes + begin)
            data = bytearray(file.read(end - begin))
            if len(data) != end - begin:
                raise ValueError(f"cistern: '{path}' ends in '{name}'")
            empty = torch.empty(shape, dtype=dtype, device="cpu")
            flat = torch.frombuffer(data, dtype=torch.uint8).view(dtype) if data else empty
            found[name] = flat.reshape(shape)
    return found


def load(model: nn.Module, path: str) -> list[str]:
    """Set the persistent buffers of ``model`` to those of ``path``, and return which it has not.

    ``path`` is a file of safetensors, or a directory with such files. Buffers on the meta device
    get memory of the host. ValueError: a buffer has another shape, or a file is damaged.
    """
    buffers = list(_persistent(model))
    names = {full for full, _, _ in buffers}
    files = glob(os.path.join(escape(path), "*.safetensors")) if os.path.isdir(path) else [path]
    found: dict[str, torch.Tensor] = {}
    for file in sorted(files) if names else ():
        if not os.path.basename(file).startswith("states-"):
            found |= _read(file, names)
    for full, module, name in buffers:
        buffer, values = module._buffers[name], found.get(full)
        if buffer is None or values is None:
            continue
        if values.shape != buffer.shape:
            raise ValueError(
                f"cistern: buffer '{full}' has the shape {tuple(buffer.shape)}, and in '{path}'"
                f" {tuple(values.shape)}"
            )
        if buffer.is_meta:
            module._buffers[name] = values.to(buffer.dtype)
        else:
            buffer.detach().copy_(values)
    return sorted(names - found.keys())


def check_no_meta(model: nn.Module) -> None:
    """Raise TypeError if a buffer is on the meta device: it has no values."""
    on_meta = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if on_meta:
        raise TypeError(
            f"cistern: buffers on the meta device have no values: {in_short(on_meta)}. Make the"
            " model with accelerate.init_empty_weights(include_buffers=False), which leaves"
            " parameters alone on the meta device"
        )


def in_short(names: list[str]) -> str:
    """Return the first ``names`` for a message, and how many follow."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
