# SPDX-License-Identifier: Apache-2.0
"""Models that have parameters beside their blocks compute the bits of plain torch in a small pool."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import cistern.torch as ct
import models
import torch
import transformers
from cistern import State
from cistern.torch.units import find_units
from models import TorchCase, bits
from torch import nn
from torch.utils.checkpoint import checkpoint

CHUNK = 2048
WIDTH = 32
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def image(n: int) -> torch.Tensor:
    x = torch.linspace(-1, 1, n * 3 * 16 * 16).reshape(n, 3, 16, 16)
    return x.to(models.DEVICE, torch.bfloat16)


def clip() -> nn.Module:
    """Two towers, a scale of the logits, and a token beside the patches of the image."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": 64, "num_attention_heads": 2}
    text = {"vocab_size": models.VOCABULARY, "max_position_embeddings": 16, "eos_token_id": 2}
    config = transformers.CLIPConfig(
        text_config={**sizes, **text, "num_hidden_layers": 8},
        vision_config={**sizes, "image_size": 16, "patch_size": 8, "num_hidden_layers": 8},
        projection_dim=16,
    )
    return transformers.CLIPModel(config)


def clip_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=batch, pixel_values=image(2), return_loss=True).loss
    return loss


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 64)
        self.down = nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Transformer(nn.Module):
    """As a vision transformer of timm: a token, positions and scales beside a Sequential.

    No input needs a gradient. Own parameters are used before, between and after the modules, and
    their products are saved for the backward pass.
    """

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 5, WIDTH))
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(WIDTH)) for _ in range(2))
        self.blocks = nn.Sequential(*(Block() for _ in range(12)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = self.positions * self.scales[0]
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + positions
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            x = x * self.scales[1]
        return self.head(self.norm(x[:, 0]))


class Checkpointed(Transformer):
    """A checkpoint of a function that uses own parameters, and then the blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = checkpoint(self.body, x, use_reentrant=self.reentrant)
        return self.head(self.norm(x[:, 0]))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1)
        x = x + self.positions * self.scales[0]
        for block in self.blocks:
            x = block(x) * self.scales[1]
        return x


class Latents(nn.Module):
    """Three levels with own parameters, which inner modules and the caller are given views of."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(WIDTH))
            self.layers = nn.ModuleList(Block() for _ in range(8))

        def forward(self, x: torch.Tensor, *, gate: torch.Tensor) -> dict[str, torch.Tensor]:
            for layer in self.layers:
                x = layer(x) * gate + self.bias
            return {"x": x, "bias": self.bias[:WIDTH]}

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 3, WIDTH))
        self.gate = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.inner = nn.ModuleDict({"one": self.Inner(), "two": self.Inner()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.latents.expand(x.shape[0], -1, -1)
        for inner in self.inner.values():
            found = inner(y, gate=self.gate.view(1, 1, -1))
            y = found["x"] + found["bias"]
        return y


class OtherOrder(nn.Module):
    """Levels inside of each other. What is declared last runs in the middle."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.inner = OtherOrder(depth - 1) if depth > 0 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x.flatten(1)[:, :WIDTH] * self.scale)
        if self.inner is not None:
            x = x + self.scale * self.inner(x)
        return self.layers[1](x) * self.scale


class Sparse(OtherOrder):
    """Half of the layers do not run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)[:, :WIDTH] * self.scale
        if self.inner is not None:
            x = self.inner(x)
        return self.layers[1](x)


class Energy(nn.Module):
    """Its forward pass uses the gradient of a part of the model with respect to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)[:, :WIDTH].detach().requires_grad_()
        energy = self.layers[0](x * self.scale).sum() * self.scale.mean()
        x = x + torch.autograd.grad(energy, x)[0]
        for layer in self.layers:
            x = layer(x) * self.scale
        return x


class Tied(nn.Module):
    """A parameter of the model is that of its head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(8))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.table = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)[:, :WIDTH] @ self.table
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Recursive(nn.Module):
    """A model that calls itself, between uses of its own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
        x = x.flatten(1)[:, :WIDTH] * self.scale
        if depth > 0:
            x = self(x, depth - 1)
        return self.layers[depth % 3](x) * self.scale


def square(model: nn.Module, _: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(image(2)).float().square().sum()
    return loss


class Bits(TorchCase):
    def check(
        self, make: Callable[[], nn.Module], loss: Loss, micro_batches: int = 1, **options: Any
    ) -> ct.Store:
        options |= {"chunk_elems": CHUNK, "micro_batches": micro_batches}
        twin, store = self.twins(make, **options)
        self.compare_steps(twin, store, loss=loss, micro_batches=micro_batches)
        return store

    def small_pool(self, make: Callable[[], nn.Module]) -> int:
        """Return the size of a pool for the largest block, and not for the model.

        The whole model would need twice as much as its weights.
        """
        least = self.least_pool(make, CHUNK)
        n_bytes = sum(2 * parameter.numel() for parameter in make().parameters())
        self.assertLess(least, n_bytes)
        return least

    def check_pools(self, make: Callable[[], nn.Module], loss: Loss) -> None:
        least = self.small_pool(make)
        for pool, micro in itertools.product((least, 0), (1, 3)):
            with self.subTest(pool=pool, micro_batches=micro):
                store = self.check(make, loss, pool=pool, micro_batches=micro)
                self.assertEqual(store.stat().evictions > 0, pool == least)
                store.close(remove=True)

    def test_clip(self) -> None:
        self.check_pools(clip, clip_loss)

    def test_clip_with_checkpoints(self) -> None:
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                twin, store = self.twins(clip, chunk_elems=CHUNK, pool=self.small_pool(clip))
                for model in (twin, store.model):
                    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
                self.compare_steps(twin, store, loss=clip_loss)
                store.close(remove=True)

    def test_a_part_of_clip_alone(self) -> None:
        """The model itself does not run, but a module in it."""

        def features(model: nn.Module, _: torch.Tensor) -> torch.Tensor:
            found = model.get_image_features(pixel_values=image(2))
            loss: torch.Tensor = getattr(found, "pooler_output", found).float().square().sum()
            return loss

        self.check(clip, features)

    def test_a_vision_transformer(self) -> None:
        self.check_pools(Transformer, square)

    def test_a_vision_transformer_with_checkpoints(self) -> None:
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                least = self.small_pool(Transformer)
                self.check(lambda r=reentrant: Transformer(r), square, pool=least)
                self.doCleanups()
                self.setUp()

    def test_a_checkpoint_of_a_function_with_own_parameters(self) -> None:
        for reentrant, micro in itertools.product((False, True), (1, 3)):
            with self.subTest(reentrant=reentrant, micro_batches=micro):
                least = self.small_pool(Checkpointed)
                store = self.check(lambda r=reentrant: Checkpointed(r), square, micro, pool=least)
                store.close(remove=True)

    def test_views_that_modules_are_given_and_return(self) -> None:
        self.check_pools(Latents, square)

    def test_units_that_run_in_another_order_than_they_are_declared(self) -> None:
        """Without waiting, a gradient of the middle would find no block in the least pool."""
        self.check_pools(OtherOrder, square)

    def test_units_that_do_not_run(self) -> None:
        """Their gradients are zeros, and hold no blocks that others need."""
        for micro in (1, 3):
            least = self.least_pool(Sparse, CHUNK)
            self.check(Sparse, square, micro, pool=least).close(remove=True)

    def test_a_gradient_of_the_input_inside_of_the_forward_pass(self) -> None:
        for units in ([], [""]):
            for micro in (1, 3):
                with self.subTest(units=units, micro_batches=micro):
                    self.check(Energy, square, micro, units=units).close(remove=True)

    def test_a_model_that_calls_itself(self) -> None:
        for units in ([], [""]):
            for micro in (1, 3):
                with self.subTest(units=units, micro_batches=micro):
                    self.check(Recursive, square, micro, units=units).close(remove=True)

    def test_ctrl_c_in_a_model_that_calls_itself(self) -> None:
        """The next call of the model is none inside of the calls that have ended."""
        twin, store = self.twins(Recursive)

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        handle = store.model.layers[0].register_forward_hook(interrupt)
        with self.assertRaises(KeyboardInterrupt):
            square(store.model, image(2))
        handle.remove()
        with torch.no_grad():
            store.model(image(2))
        self.assertEqual(store._runner.operators.open_units, [])
        self.compare_steps(twin, store, loss=square)

    def test_a_parameter_that_is_also_that_of_a_module(self) -> None:
        self.check(Tied, square)

    def test_copies_of_views_have_their_strides(self) -> None:
        """With others, a product could be computed in another way."""

        class Positions(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table = nn.Parameter(torch.randn(6, 4))

            def forward(self) -> list[torch.Tensor]:
                part = self.table.t()[1:, ::2]
                return [part, part[None].expand(2, -1, -1), self.table[:0], self.table]

        twin, store = self.twins(Positions)
        for model in (store.model, twin):
            sum(part.float().square().sum() for part in model()).backward()
        for ours, plain in zip(store.model(), twin(), strict=True):
            self.assertEqual((bits(ours), ours.stride()), (bits(plain), plain.stride()))
        store.optimizer(lr=0.1).step()
        self.compare_gradients(twin, store, 0)

    def test_inference(self) -> None:
        twin, store = self.twins(Latents)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                self.assertEqual(bits(store.model(image(2))), bits(twin(image(2))))

    def test_a_backward_pass_to_some_parameters(self) -> None:
        """No gradient leaves blocks, and none enters the embedding of the patches."""
        twin, store = self.twins(Transformer)
        for names in (
            ["patches.bias", "head.bias"],
            ["positions", "blocks.2.up.weight"],
            ["token"],
        ):
            grads = []
            for model in (store.model, twin):
                wanted = [dict(model.named_parameters())[name] for name in names]
                grads.append(torch.autograd.grad(square(model, image(2)), wanted))
            self.assertEqual([bits(g) for g in grads[0]], [bits(g) for g in grads[1]], names)


class Units(TorchCase):
    def test_units_of_nested_modules(self) -> None:
        layers = [[f"inner.{i}.layers.{j}" for j in range(8)] for i in ("one", "two")]
        found = find_units(Latents())
        self.assertEqual(list(found), ["", "inner.one", *layers[0], "inner.two", *layers[1]])
        self.assertEqual([len(unit.parameters) for unit in found.values()], [2, *[1, *[6] * 8] * 2])
        self.assertEqual(
            list(find_units(Latents(), ["inner.two"])), [*list(found)[:10], "inner.two"]
        )
        self.assertEqual(list(find_units(Latents(), [""])), [""])

    def test_lists_are_of_the_module_that_has_them(self) -> None:
        found = find_units(Transformer())
        blocks = [f"blocks.{i}" for i in range(12)]
        self.assertEqual(list(found), ["", "patches", *blocks, "norm", "head"])
        self.assertEqual(len(found[""].parameters), 4)

    def test_modules_with_parameters_and_no_blocks_stay_whole(self) -> None:
        """They can use the weights of the modules below them, as attention does."""
        attention = nn.MultiheadAttention(8, 2)
        self.assertEqual(list(find_units(attention)), [""])
        self.assertEqual(list(find_units(attention, ["out_proj"])), ["", "out_proj"])
        self.assertIn("vision_model.embeddings", find_units(clip()))

    def test_stages_are_divided(self) -> None:
        stages = nn.Sequential(*(nn.Sequential(Block(), Block()) for _ in range(2)))
        self.assertEqual(list(find_units(stages)), ["0.0", "0.1", "1.0", "1.1"])
        lists = nn.ModuleList(nn.ModuleList([Block()]) for _ in range(2))
        self.assertEqual(list(find_units(lists)), ["0.0", "1.0"])

    def test_a_module_that_is_called_model(self) -> None:
        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = Latents.Inner()
                self.scale = nn.Parameter(torch.ones(WIDTH))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.model(x, gate=self.scale)["x"]

        store = self.attach(model := Outer())
        model(torch.ones(2, WIDTH)).sum().backward()
        store.optimizer(lr=0.1).step()
        self.assertGreater(store.read("scale", State.GRAD).abs().max(), 0)

    def test_muon_leaves_out_the_ends_and_what_is_beside_the_blocks(self) -> None:
        described = ct.describe(Transformer())
        updates = {
            tensor["name"]: tensor.get("update") for tensor in json.loads(described)["tensors"]
        }
        for name, update in updates.items():
            self.assertEqual(update, None if "blocks" in name or "norm" in name else "adamw", name)
