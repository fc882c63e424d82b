# SPDX-License-Identifier: Apache-2.0
"""Whole small models that ranks divide, in each mode: the losses and weights of one rank."""

import copy
import math
import unittest
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
import transformers
from cistern.torch import parallel
from gloo import run_ranks
from test_parallel_linear import received
from torch import nn
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

N_STEPS = 5
BATCH, LENGTH, VOCABULARY, HIDDEN, INNER, HEADS, LAYERS = 8, 8, 56, 32, 48, 8, 1
UNEVEN = {"vocab_size": 53, "intermediate_size": 45}
TOLERANCE = 1e-5


def config(kind: str = "Llama", **further: Any) -> Any:
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": 16,
        "tie_word_embeddings": False,
    }
    return getattr(transformers, kind + "Config")(**(shape | further))


def model_of(kind: str, **further: Any) -> nn.Module:
    torch.manual_seed(2)
    kinds = {"Llama": transformers.LlamaForCausalLM, "Qwen3": transformers.Qwen3ForCausalLM}
    model = kinds[kind](config(kind, **further))
    with torch.no_grad():  # Norms that are not all ones, so that their gradients matter.
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / 4)
    return model


def batch(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(50, (BATCH, LENGTH), generator=generator)
    labels = ids.clone()
    labels[0, :3] = -100
    return {"input_ids": ids, "labels": labels}


def part(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of ``whole``, according to torch."""
    shape, first = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return whole[tuple(slice(f, f + n) for f, n in zip(first, shape, strict=True))]


class LocalAdamW:
    """AdamW of what this rank has of each parameter, which has the results of AdamW of the parameters.

    In each process torch finds out anew how each operation of the optimizer divides each parameter, which
    takes seconds.
    """

    def __init__(self, model: nn.Module, lr: float) -> None:
        parameters = list(model.parameters())
        self._pairs = [(p, nn.Parameter(p.detach().to_local())) for p in parameters]
        self._optimizer = torch.optim.AdamW([local for _, local in self._pairs], lr)

    def step(self) -> None:
        for parameter, local in self._pairs:
            local.grad = parameter.grad.to_local()
        self._optimizer.step()

    def zero_grad(self) -> None:
        for parameter, _ in self._pairs:
            parameter.grad = None


def compare(kind: str, mode: str, mesh: Any, options: dict[str, Any], **further: Any) -> Fraction:
    """Train beside one rank. Return the bytes of a step."""
    theirs = model_of(kind, **further)
    ours = parallel.shard(copy.deepcopy(theirs), mesh, mode, **options)
    optimizers = [torch.optim.AdamW(theirs.parameters(), 1e-2, foreach=False)]
    if dist.get_world_size() > 4:
        optimizers.append(LocalAdamW(ours, 1e-2))
    else:
        optimizers.append(torch.optim.AdamW(ours.parameters(), 1e-2, foreach=False))
    for step in range(N_STEPS):
        loss = theirs(**batch(step)).loss
        loss.backward()
        with parallel.volumes() as counted:
            mine = ours(**batch(step)).loss
            mine.backward()
        error = abs(mine.item() - loss.item()) / loss.item()
        assert error < TOLERANCE, f"{kind}, {mode}, {options}: {mine} for {loss}"
        for name, parameter in theirs.named_parameters() if step == 0 else ():
            grad = ours.get_parameter(name).grad
            expected = part(grad, parameter.grad)
            error = (grad.to_local() - expected).abs().max() / parameter.grad.abs().max()
            assert error < TOLERANCE, f"{kind}, {mode}, {options}: grad of {name}: {error}"
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return counted.received


def in_all_modes(
    kind: str, options: dict[str, dict[str, Any]], further: dict[str, Any]
) -> dict[str, tuple[tuple[int, ...], Fraction]]:
    """Return for each mode the sizes of the mesh, and the elements that a rank receives."""
    counted = {}
    for mode in parallel.MODES:
        mesh = parallel.make_mesh(mode)
        n_bytes = compare(kind, mode, mesh, options.get(mode, {}), **further)
        counted[mode] = tuple(mesh.shape), n_bytes / 4
    return counted


#: By mode, the dimensions of the mesh that cut the tokens and the width between blocks, and the
#: tokens and the columns inside of them.
CUTS: dict[str, tuple[list[int], list[int], list[int], list[int]]] = {
    "1d": ([], [], [], [0]),
    "sequence": ([0], [], [], [0]),
    "zero3": ([0], [], [0], []),
    "2d": ([0], [1], [0], [1]),
    "2.5d": ([0, 1], [2], [0, 1], [2]),
    "3d": ([2, 1], [0], [2, 0], [1]),
}
PAIRS = {
    "1d": ("column", "row"),
    "sequence": ("sequence_column", "sequence_row"),
    "3d": ("3d", "3d_back"),
}


def expected(mode: str, sizes: tuple[int, ...]) -> Fraction:
    """Return the elements that a rank receives in a forward and a backward pass of LLaMA."""
    f = Fraction
    m, h, i, v = BATCH * LENGTH, HIDDEN, INNER, VOCABULARY
    rows, width, inner_rows, inner_width = ([sizes[k] for k in cut] for cut in CUTS[mode])
    first, second = PAIRS.get(mode, (mode, mode))
    p = sizes[0]

    def product(of: list[int]) -> int:
        return math.prod(of)

    def all_reduce(n_ranks: list[int], elements: Any) -> Fraction:
        return sum((2 * f(n - 1, n) * elements for n in n_ranks), f(0))

    def gather(n_ranks: list[int], elements: Any) -> Fraction:
        """Gather one axis after the other, of which the first one has the largest parts."""
        total = f(0)
        for n in n_ranks:
            total += f(n - 1, n) * elements
            elements = f(elements, n)
        return total

    attention = 3 * received(first, sizes, m, h, h)
    if mode == "sequence":  # Queries, keys and values are made of what is gathered once.
        attention = 2 * gather([p], m * h)
    layer = attention + received(second, sizes, m, h, h)
    layer += 2 * received(first, sizes, m, h, i) + received(second, sizes, m, i, h)
    head = received(first, sizes, m, h, v)
    scalars = f(m, product(rows))
    norm = 2 * all_reduce(width, scalars) + all_reduce(rows, f(h, product(width)))
    embedding = 2 * gather(rows, f(m * h, product(width)))
    if mode == "1d":
        embedding = all_reduce([p], m * h)
    elif mode == "zero3":
        embedding = 2 * gather([p], v * h)
    losses = all_reduce(inner_width, 3 * f(m, product(inner_rows))) + all_reduce(inner_rows, 1)
    return LAYERS * (layer + 2 * norm) + norm + head + embedding + losses


def tied() -> None:
    for mode in ("1d", "sequence", "zero3"):
        compare("Qwen3", mode, parallel.make_mesh(mode), {}, tie_word_embeddings=True)


def what_is_refused() -> list[str]:
    square, cube = parallel.make_mesh("2d", (2, 2)), parallel.make_mesh("3d", (1, 2, 2))
    line = parallel.make_mesh("1d")
    whole = parallel.shard(model_of("Llama"), square, "2d")
    padded = {"attention_mask": torch.tensor([[0] + 7 * [1]] * BATCH)}
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_head=4, n_embd=32, vocab_size=50, n_positions=8)
    )
    two_heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    calls: list[Callable[[], Any]] = [
        lambda: parallel.shard(model_of("Llama", tie_word_embeddings=True), square, "2d"),
        lambda: parallel.shard(model_of("Llama", **two_heads), line, "1d"),
        lambda: parallel.shard(model_of("Llama"), cube, "3d"),
        lambda: parallel.shard(model_of("Llama"), square, "2d", sequence=True),
        lambda: parallel.shard(model_of("Llama"), square, "4d"),
        lambda: parallel.shard(gpt2, line, "1d"),
        lambda: whole(**batch(0), **padded),
        lambda: whole(**{k: v[:3] for k, v in batch(0).items()}),
    ]
    said = []
    for call in calls:
        try:
            call()
        except (ValueError, TypeError) as error:
            said.append(str(error))
        else:
            said.append("nothing")
    return said


class Models(unittest.TestCase):
    def check(self, n_ranks: int) -> None:
        for by_mode in run_ranks(n_ranks, in_all_modes, "Llama", {}, {}):
            for mode, (sizes, elements) in by_mode.items():
                with self.subTest(mode=mode, sizes=sizes):
                    self.assertEqual(elements, expected(mode, sizes))

    def test_four_ranks_train_llama_in_each_mode(self) -> None:
        self.check(4)

    def test_eight_ranks_train_llama_in_each_mode(self) -> None:
        self.check(8)

    def test_panels_sequences_biases_norms_of_heads_and_widths_that_do_not_divide(self) -> None:
        options = {"2d": {"panels": 2}, "3d": {"panels": 3}, "sequence": {"sequence": True}}
        further = {"attention_bias": True, "num_key_value_heads": 4} | UNEVEN
        run_ranks(4, in_all_modes, "Qwen3", options, further)

    def test_tied_embeddings_are_cut_once(self) -> None:
        run_ranks(4, tied)

    def test_what_no_mode_can_do_is_refused_in_words(self) -> None:
        ties, heads, cube, sequence, mode, plan, padding, rows = run_ranks(4, what_is_refused)[0]
        self.assertIn("tie_word_embeddings=False, or use mode '1d', 'sequence' or 'zero3'", ties)
        self.assertIn("2 num_attention_heads, which 4 ranks along p", heads)
        self.assertIn("1, 2 can", heads)
        self.assertIn("is 1 x 2 x 2, and a model wants as many ranks along b as along c", cube)
        self.assertIn("sequence=True is for the mode 'sequence', not '2d'", sequence)
        self.assertIn("'4d' is none of 1d, sequence", mode)
        self.assertIn("GPT2LMHeadModel has no plan", plan)
        self.assertIn("takes no padded sequences", padding)
        self.assertIn("3 rows cannot be shared by 2 ranks: give a multiple of 2", rows)


if __name__ == "__main__":
    unittest.main()
