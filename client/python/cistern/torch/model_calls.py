# SPDX-License-Identifier: Apache-2.0
"""Functions of a model that others replace because its weights are in a store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from cistern.torch import adapters

if TYPE_CHECKING:
    from cistern.torch.store import Store


def replace(store: Store, model: nn.Module) -> None:
    """Let ``model``, that of ``store``, be neither copied nor moved, nor compiled by TorchScript."""
    marked: Any = model
    # So that accelerate neither moves the model nor wraps it in DistributedDataParallel.
    marked._is_accelerate_prepared = True
    marked.to = partial(_stay, model, store.device.torch_device)
    for name, dtype in _TYPES.items():
        setattr(model, name, partial(marked.to, dtype))
    for module in model.modules():
        if next(module.parameters(), None) is not None:
            part: Any = module
            part.__deepcopy__ = part.__reduce_ex__ = _refuse_copy
            part.__prepare_scriptable__ = _refuse_script
    if hasattr(model, "resize_token_embeddings"):
        marked.resize_token_embeddings = _refuse_resize
    if adapters.is_peft(model):
        marked.merge_and_unload = marked.merge_adapter = marked.unload = _refuse_merge


_TYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
EXPORTED = (
    "cistern: torch.jit and torch.export cannot record this model, because its weights are in a store: give"
    " Store.state_dict() to another model that was not attached, and export that one"
)


def _refuse_script() -> NoReturn:
    """Stand in the place of what torch.jit.script calls of a module."""
    raise RuntimeError(EXPORTED)


def _refuse_copy(_: Any) -> NoReturn:
    """Stand in the place of what copy.deepcopy, pickle and torch.save call of a module."""
    raise TypeError(
        "cistern: the weights of this model are in a store: copy or pickle model.state_dict(), which"
        " has copies of them, or copy the model before attach. Store.save writes a checkpoint"
    )


def _refuse_merge(*_: Any, **__: Any) -> NoReturn:
    """Stand in the place of what merges adapters of PEFT into weights, or removes them."""
    raise TypeError(
        "cistern: adapters cannot be merged or unloaded here, because the weights of this model are in a"
        " store: write them with model.save_pretrained(dir), and merge them into a model that was not"
        " attached, with PeftModel.from_pretrained(base, dir).merge_and_unload()"
    )


def _refuse_resize(*_: Any, **__: Any) -> NoReturn:
    """Stand in the place of what replaces embeddings of a model of transformers by larger ones."""
    raise TypeError(
        "cistern: embeddings cannot be resized here, because the weights of this model are in a store:"
        " call resize_token_embeddings before attach. A model whose weights are in a job already: write"
        " them with model.save_pretrained(dir), load and resize that, and attach it with another name"
    )


def _stay(model: nn.Module, device: torch.device, *args: Any, **kwargs: Any) -> nn.Module:
    """The ``to`` of a model, which can name only the device and the type that the model has."""
    parse: Any = torch._C._nn._parse_to
    wanted, dtype, _, memory_format = parse(*args, **kwargs)
    if wanted is not None and (wanted.type, wanted.index or 0) != (device.type, device.index or 0):
        raise TypeError(f"cistern: the model is on {device}, where attach was told to put it")
    types = {parameter.dtype for parameter in model.parameters()}
    if dtype is not None and types != {dtype}:
        have = " and ".join(sorted(str(kind) for kind in types))
        raise TypeError(f"cistern: the weights are {have} and cannot become {dtype}")
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        raise TypeError(
            f"cistern: the weights are contiguous in the pool and cannot become {memory_format}: give the"
            " model inputs of this format"
        )
    return model
