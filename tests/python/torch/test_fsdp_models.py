# SPDX-License-Identifier: Apache-2.0
"""The models with which torch tests FSDP compute the bits of plain torch in a store.

They tie weights, freeze some, use modules twice or not at all, and nest modules without a list.
"""

import unittest
import warnings
from collections.abc import Callable, Collection
from functools import partial

import cistern.torch as ct
import models
import torch
from cistern import State
from models import TorchCase, bits
from torch import nn

try:
    from torch.testing._internal import common_fsdp as fsdp
    from torch.testing._internal.distributed._tensor import common_dtensor as dtensor
except ImportError as error:
    raise unittest.SkipTest(f"the tests of torch: {error}") from error

GROUP = fsdp.DummyProcessGroup(rank=0, size=1)
PLAIN = fsdp.FSDPInitMode.NO_FSDP
HOST = fsdp.DEVICEInitMode.DEVICE_NEVER
Make = Callable[[], nn.Module]


def with_loss(kind: type[fsdp.FSDPTestModel], **options: object) -> nn.Module:
    return kind.init(GROUP, PLAIN, HOST, **options)


def stack() -> nn.Module:
    return fsdp.MLPStack(48, with_seq_parallel=True)


def two_outputs(used: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), fsdp.DoubleLinear(8, use_second_linear=used))


def transformer(**options: object) -> nn.Module:
    return dtensor.Transformer(dtensor.ModelArgs(dim=48, **options))


# Each model, and the tensors whose gradient is a sum of more than two, which has another order.
MODELS: dict[str, tuple[Make, Collection[str]]] = {
    "shared parameters": (
        partial(with_loss, fsdp.TransformerWithSharedParams, deterministic=True),
        ["embed_tokens.weight"],
    ),
    "shared parameters, dropout": (
        partial(with_loss, fsdp.TransformerWithSharedParams, add_bn=False),
        ["embed_tokens.weight"],
    ),
    "nested": (partial(with_loss, fsdp.NestedWrappedModule), []),
    "always wrapped": (partial(with_loss, fsdp.AlwaysWrapNestedWrappedModule), []),
    "partly frozen": (partial(with_loss, fsdp.NonUniformReqGradNWM), []),
    "experts": (partial(with_loss, fsdp.MixtureOfExperts), []),
    "perceptrons": (stack, []),
    "two outputs": (partial(two_outputs, True), []),
    "an unused module": (partial(two_outputs, False), []),
    "transformer": (transformer, []),
    "transformer without ties": (partial(transformer, weight_tying=False), []),
    "transformer, checkpoints": (partial(transformer, checkpoint_activations=True), []),
    "transformer of experts": (partial(transformer, num_experts=4), []),
}

LARGE = [kind for kind in MODELS if kind.startswith(("transformer", "perceptrons"))]
CHUNK = 4096


def inputs_of(model: nn.Module) -> tuple[torch.Tensor, ...]:
    if isinstance(model, fsdp.FSDPTestModel):
        inputs = model.get_input(torch.device("cpu"))
        return tuple(x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs)
    if isinstance(model, dtensor.Transformer):
        return (torch.randint(8, (2, 16)),)
    width = next(model.parameters()).shape[1]
    return (torch.randn(4, width).to(torch.bfloat16),)


def loss_of(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    output = model(*inputs)
    if isinstance(model, fsdp.FSDPTestModel):
        return model.get_loss(inputs, output)
    outputs = output if isinstance(output, tuple) else (output,)
    return sum(o.float().square().sum() for o in outputs)


class Models(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        warnings.simplefilter("ignore", UserWarning)

    def check(self, make: Make, rounded: Collection[str], **options: object) -> ct.Store:
        twin, store = self.twins(lambda: make().to(torch.bfloat16), chunk_elems=CHUNK, **options)
        optimizer = store.optimizer(lr=1e-2, clip_norm=1.0)
        for step in range(3):
            models.copy_weights(store, twin)
            losses = []
            for model in (store.model, twin):
                torch.manual_seed(step)
                losses.append(loss_of(model, inputs_of(model)))
                losses[-1].backward()
            optimizer.step()
            self.assertEqual(*map(bits, losses))
            self.compare(twin, store, rounded)
        self.compare_inference(twin, store)
        return store

    def compare(self, twin: nn.Module, store: ct.Store, rounded: Collection[str]) -> None:
        for name, parameter in twin.named_parameters():
            if not parameter.requires_grad:
                continue
            ours = store.read(name, State.GRAD)
            plain = torch.zeros_like(ours) if parameter.grad is None else parameter.grad
            if name in rounded:
                error = (ours.float() - plain.float()).abs().max()
                self.assertLessEqual(error, 0.01 * plain.abs().max(), name)
            else:
                self.assertEqual(bits(ours), bits(plain), name)

    def compare_inference(self, twin: nn.Module, store: ct.Store) -> None:
        """torch has other code for transformers that are not trained."""
        models.copy_weights(store, twin)
        with torch.no_grad():
            torch.manual_seed(7)
            ours = loss_of(store.model.eval(), inputs_of(store.model))
            torch.manual_seed(7)
            self.assertEqual(bits(ours), bits(loss_of(twin.eval(), inputs_of(twin))))

    def test_units_that_are_found(self) -> None:
        for kind, (make, rounded) in MODELS.items():
            with self.subTest(kind):
                self.check(make, rounded)
            self.doCleanups()
            self.setUp()

    def test_the_smallest_pool(self) -> None:
        for kind in LARGE:
            make, rounded = MODELS[kind]
            with self.subTest(kind):
                least = self.least_pool(make, CHUNK)
                store = self.check(make, rounded, pool=least)
                self.assertGreater(store.stat().evictions, 0)
            self.doCleanups()
            self.setUp()

    def test_one_unit(self) -> None:
        for kind, (make, _) in MODELS.items():
            with self.subTest(kind):
                self.check(make, [], units=[""])
            self.doCleanups()
            self.setUp()
