# SPDX-License-Identifier: Apache-2.0
"""Every module that torch tests itself computes the bits of plain torch in a store."""

import copy
import unittest
from typing import Any

import torch
from cistern import State
from models import TorchCase
from torch import nn
from torch.nn.parameter import is_lazy

try:
    from torch.testing._internal.common_modules import ModuleInfo, module_db
except ImportError as error:
    raise unittest.SkipTest(f"the tests of torch: {error}") from error

N_INPUTS = 3  # Of each module, at most.


class Holder(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def run(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
    """Run the model forward and backward, and return its outputs and the gradients of inputs."""
    torch.manual_seed(3)
    args, kwargs = copy.deepcopy((inputs.args, inputs.kwargs))
    outputs = tensors(model(*args, **kwargs))
    trained = [t for t in outputs if t.requires_grad]
    if trained:
        sum(t.float().square().sum() for t in trained).backward()
    grads = [t.grad for t in tensors((args, kwargs)) if t.is_leaf and t.grad is not None]
    return [*outputs, *grads]


class Modules(TorchCase):
    def plain(self, info: ModuleInfo, sample: Any) -> nn.Module | None:
        """Return the module in bf16, or None if plain torch cannot run it so."""
        built = sample.constructor_input
        model = Holder(info.module_cls(*built.args, **built.kwargs))
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(torch.bfloat16)
        try:
            run(copy.deepcopy(model), sample.forward_input)
        except (RuntimeError, NotImplementedError, ValueError):
            return None
        return model

    def compare(self, model: nn.Module, sample: Any) -> None:
        twin = copy.deepcopy(model)
        store = self.attach(model, chunk_elems=4096, units=["module"])
        optimizer = store.optimizer(lr=0.0)
        for _ in range(2):
            for parameter in twin.parameters():
                parameter.grad = None
            ours, plain = run(model, sample.forward_input), run(twin, sample.forward_input)
            optimizer.step()
            self.assertEqual(len(ours), len(plain))
            for one, other in zip(ours, plain, strict=True):
                self.assertTrue(torch.equal(one, other) or one.isnan().any())
            for name, parameter in twin.named_parameters():
                if parameter.grad is None or parameter.grad.isnan().any():
                    continue
                grad = store.read(name, State.GRAD)
                self.assertTrue(torch.equal(grad, parameter.grad), f"gradient of {name}")
        store.close(remove=True)

    def test_all(self) -> None:
        compared = set()
        for info in module_db:
            samples = info.module_inputs_func(
                info, device="cpu", dtype=torch.bfloat16, requires_grad=True, training=True
            )
            for i, sample in enumerate(samples[:N_INPUTS]):
                model = self.plain(info, sample)
                if model is None or next(model.parameters(), None) is None:
                    continue
                if any(map(is_lazy, model.parameters())):
                    with self.assertRaisesRegex(TypeError, "lazy"):
                        self.attach(model)
                    continue
                with self.subTest(module=info.name, input=i):
                    self.compare(model, sample)
                    compared.add(info.name)
        self.assertGreaterEqual(len(compared), 25)
        print(f"{len(compared)} modules:", *sorted(compared))
