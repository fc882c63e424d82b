# SPDX-License-Identifier: Apache-2.0
"""Every module that torch tests itself, with all inputs of these tests.

Outputs, and gradients of parameters and inputs, have the bits of plain torch.
"""

import copy
import unittest
import warnings
from collections import Counter, defaultdict
from typing import Any

import torch
from cistern import State
from models import TorchCase, bits
from torch import nn
from torch.nn.parameter import is_lazy

try:
    from torch.testing._internal.common_modules import ModuleInfo, module_db
except ImportError as error:
    raise unittest.SkipTest(f"the tests of torch: {error}") from error

# How many inputs of how many modules have each outcome, with torch 2.15. A module can have several.
PASS = "pass"
LAZY = "pass after the first run, and refused before: has no shape yet: run the lazy module once"
NOTHING = "refused: the model has no parameters"
NO_KERNEL = "torch has no kernel for bf16"
EXPECTED = {PASS: (1311, 31), LAZY: (18, 6), NOTHING: (433, 81), NO_KERNEL: (75, 6)}


class Holder(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def leaf(value: Any) -> Any:
    """Return a copy of a tensor that has no history."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def run(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
    """Run the model forward and backward, and return its outputs and the gradients of inputs."""
    torch.manual_seed(3)
    args, kwargs = torch.utils._pytree.tree_map(leaf, (inputs.args, inputs.kwargs))
    outputs = tensors(model(*args, **kwargs))
    trained = [t for t in outputs if t.requires_grad]
    if trained:
        sum(t.float().square().sum() for t in trained).backward()
    grads = [t.grad for t in tensors((args, kwargs)) if t.grad is not None]
    return [*outputs, *grads]


class Modules(TorchCase):
    def outcome(self, info: ModuleInfo, sample: Any) -> str:
        """Run one module with one input, and return what happened. Fails if bits differ."""
        built, inputs = sample.constructor_input, sample.forward_input
        model = Holder(info.module_cls(*built.args, **built.kwargs)).to(torch.bfloat16)
        lazy = any(map(is_lazy, model.parameters()))
        if lazy:
            with self.assertRaisesRegex(TypeError, LAZY.partition(": ")[2]):
                self.attach(model)
            model(*inputs.args, **inputs.kwargs)
        try:
            run(copy.deepcopy(model), inputs)
        except NotImplementedError as error:
            self.assertIn("not implemented for 'BFloat16'", str(error))
            return NO_KERNEL
        if next(model.parameters(), None) is None:
            with self.assertRaisesRegex(ValueError, NOTHING.partition(": ")[2]):
                self.attach(model)
            return NOTHING
        self.compare(model, inputs)
        return LAZY if lazy else PASS

    def compare(self, model: nn.Module, inputs: Any) -> None:
        twin = copy.deepcopy(model)
        store = self.attach(model, chunk_elems=4096, units=["module"])
        optimizer = store.optimizer(lr=0.0)
        for _ in range(2):
            for parameter in twin.parameters():
                parameter.grad = None
            ours, plain = run(model, inputs), run(twin, inputs)
            optimizer.step()
            self.assertEqual(list(map(bits, ours)), list(map(bits, plain)))
            for name, parameter in twin.named_parameters():
                grad = parameter.grad
                plain_grad = torch.zeros_like(parameter) if grad is None else grad
                self.assertEqual(bits(store.read(name, State.GRAD)), bits(plain_grad), name)
        store.close(remove=True)

    def test_all(self) -> None:
        warnings.simplefilter("ignore", UserWarning)
        n_inputs: Counter[str] = Counter()
        names: defaultdict[str, list[str]] = defaultdict(list)
        for info in module_db:
            samples = info.module_inputs_func(
                info, device="cpu", dtype=torch.bfloat16, requires_grad=True, training=True
            )
            for i, sample in enumerate(samples):
                with self.subTest(module=info.name, input=i):
                    outcome = self.outcome(info, sample)
                    n_inputs[outcome] += 1
                    if info.name not in names[outcome]:
                        names[outcome].append(info.name)
        for outcome, modules in names.items():
            print(f"\n{outcome}: {len(modules)} modules, {n_inputs[outcome]} inputs:", *modules)
        self.assertEqual({o: (n_inputs[o], len(names[o])) for o in names}, EXPECTED)
        self.assertEqual({n for of in names.values() for n in of}, {m.name for m in module_db})
        self.assertEqual(len(module_db), 114)
