# SPDX-License-Identifier: Apache-2.0
"""PyTorch models whose states are in the cistern daemon. Needs torch 2.12 or later.

    import cistern.torch as ct

    store = ct.attach(model, "run7", pool="6G")
    opt = store.optimizer(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, clip_norm=1.0)
    for batch in loader:
        model(**batch).loss.backward()
        opt.step()

``attach`` moves the weights of the model into the daemon. The parameters keep their names, shapes
and dtype, but their memory can be used only while a module runs that owns them.

The import makes ``torch.nn.utils.clip_grad_norm_`` work with parameters of a store. Import this
module before one that copies that function by ``from ... import``. Optimizers of torch.optim that
have trained parameters of a store raise RuntimeError when they step.
"""

import importlib
from typing import Any

from cistern.errors import (
    CstError,
    DaemonGone,
    DeviceLost,
    JobEnded,
    Mismatch,
    PoolTooSmall,
    StaleVersion,
    StepVoid,
)
from cistern.standbys import standby
from cistern.torch import aliases, clip, owners, parameter, storage
from cistern.torch.attachment import attach
from cistern.torch.optimizer import Optimizer
from cistern.torch.planner import Forecast, describe, plan
from cistern.torch.readers import Reader, Version, reader
from cistern.torch.saved import save_on_cpu
from cistern.torch.store import Store

__all__ = [
    "CstError",
    "DaemonGone",
    "DeviceLost",
    "Forecast",
    "JobEnded",
    "Mismatch",
    "Optimizer",
    "PoolTooSmall",
    "Reader",
    "StaleVersion",
    "StepVoid",
    "Store",
    "Version",
    "attach",
    "describe",
    "plan",
    "reader",
    "save_on_cpu",
    "standby",
]

storage.self_test()
aliases.self_test()
clip.install()
owners.install()
parameter.install()


def __getattr__(name: str) -> Any:
    """Import ``hf``, which needs transformers, and ``parallel`` when they are used."""
    if name == "parallelize":
        return importlib.import_module("cistern.torch.parallel").parallelize
    if name in ("hf", "parallel"):
        return importlib.import_module(f"cistern.torch.{name}")
    raise AttributeError(f"module 'cistern.torch' has no attribute '{name}'")
