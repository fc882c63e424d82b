# SPDX-License-Identifier: Apache-2.0
"""Models of PEFT: adapters, which are trained, in a model whose weights are frozen.

In the job, frozen tensors have the names that they have without PEFT, so that jobs with adapters
and other jobs can have the same base. Checkpoints have the adapters as PEFT saves them.
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

from torch import nn


def is_peft(model: nn.Module) -> bool:
    """Return whether ``model`` is one of PEFT."""
    peft: Any = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def name_in_job(model: nn.Module, name: str, parameter: nn.Parameter) -> str:
    """Return what the job calls the parameter ``name``."""
    return name if parameter.requires_grad else frozen_name(model, name)


def frozen_name(model: nn.Module, name: str) -> str:
    """Return what the job calls the parameter ``name`` if it is frozen."""
    if not is_peft(model):
        return name
    plain = name.removeprefix("base_model.").removeprefix("model." if _is_wrapped(model) else "")
    return plain.replace(".base_layer.", ".").replace(".original_module.", ".")


def _is_wrapped(model: Any) -> bool:
    """Return whether PEFT has put a module of its own around the model."""
    return not model.active_peft_config.is_prompt_learning


def external_names(model: Any) -> dict[str, str]:
    """Return what PEFT calls trained parameters in files, by their names in ``model``."""
    if not is_peft(model):
        return {}
    peft: Any = sys.modules["peft"]
    parameters = dict(model.named_parameters())
    saved = peft.get_peft_model_state_dict(
        model, parameters, model.active_adapter, save_embedding_layers=False
    )
    files = {id(parameter): name for name, parameter in saved.items()}
    return {
        name: files[id(parameter)]
        for name, parameter in parameters.items()
        if parameter.requires_grad and id(parameter) in files
    }


def config_text(model: Any) -> str | None:
    """Return the file adapter_config.json of a model of PEFT; None: it is another model."""
    if not is_peft(model):
        return None
    config = copy.copy(model.active_peft_config)
    config.inference_mode = True
    values = {k: list(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}
    return json.dumps(values, indent=2, sort_keys=True)
