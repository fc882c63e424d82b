# SPDX-License-Identifier: Apache-2.0
"""A stage of a pipeline out of a model of transformers that was not written for one.

The stage is the model itself, in which modules that other stages have are replaced by identities, so that
parameters keep the names that they have in the whole. Later stages are called with hidden states in place of
tokens, as transformers calls a model with ``inputs_embeds``. Whether that gives what the whole gives is not
known from the code, and is therefore tried, with a few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from cistern.torch.parallel import cuts

_STRIDE = 7  # Between rows of made-up values.
_N_ROWS = 64  # Of linear layers that are tried without values of their own.


def stage_of(
    model: nn.Module, stage: int, n_stages: int, *, borders: Sequence[int] | None = None
) -> nn.Module:
    """Return stage ``stage`` of ``n_stages`` of a causal language model of transformers, which changes.

    The first stage takes tokens, the others hidden states; all return hidden states but the last, which
    returns logits. Cuts are between the layers: ``borders`` are the numbers of layers before which stages 1, 2,
    ... begin; by default stages have equally many. A weight that the head shares with the embedding is in the
    first and in the last stage, under one name. All of the model runs once, with few tokens, and so does the
    stage: with the values that it has on the host or on a GPU, or, where it is on the meta device, with values
    that are made up, take no memory, and are gone afterwards.

    ValueError: there is no such stage or border, the model has no layers to cut between, or the stage does not
    compute what its modules compute in the whole.
    """
    layers = cuts.layers_of(model)
    begins = cuts.first_layers(len(layers), n_stages, borders)
    if not 0 <= stage < n_stages:
        raise ValueError(
            f"cistern: stage {stage} is none of the {n_stages} stages 0 to {n_stages - 1}"
        )
    first, end = begins[stage], begins[stage + 1]
    is_first, is_last = stage == 0, stage == n_stages - 1
    tokens = cuts.few_tokens(model)
    was_training = model.training
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(), values(model, tokens.device):
        names = {name for name, _ in model.named_parameters()}
        probe = cuts.Probe(model, layers, tokens)
        for module, name, child in cuts.absent_from(model, list(layers), probe, first, end):
            module._modules[name] = cuts.stand_in(child)
        unknown = {name for name, _ in model.named_parameters()} - names
        if unknown:
            raise ValueError(
                f"cistern: stage {stage} would have the parameter '{min(unknown)}', which has another name in the"
                " whole model: give attach stages of your own, with the names of the whole"
            )
        last = None if is_last else layers[end - 1]
        key = "input_ids" if is_first else "inputs_embeds"
        model.forward = _Forward(model.forward, key, last)
        given = tokens if is_first else probe.given[first]
        wanted = probe.result if is_last else probe.given[end]
        cuts.check(stage, model, given, wanted)
    return model.train(was_training)


@contextmanager
def values(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Let parameters and buffers of ``model`` on the meta device have values on ``device``, and take them back.

    The values are random numbers that overlap or are shared: they take little memory, and are the same in every
    process.
    """
    made: dict[Any, torch.Tensor] = {}
    changed: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    generator = torch.Generator().manual_seed(1)
    try:
        for module in model.modules():
            own: list[dict[str, Any]] = [module._parameters, module._buffers]
            for tensors in own:
                for name, tensor in tensors.items():
                    if tensor is not None and tensor.is_meta:
                        changed.append((tensors, name, tensor))
                        if id(tensor) not in made:
                            made[id(tensor)] = _made_up(tensor, device, generator, made)
                        tensors[name] = made[id(tensor)]
        with _FewRows():
            yield
    finally:
        for tensors, name, tensor in changed:
            tensors[name] = tensor


def _made_up(
    tensor: torch.Tensor,
    device: torch.device,
    generator: torch.Generator,
    made: dict[Any, torch.Tensor],
) -> torch.Tensor:
    """Return values for ``tensor``. Layers of them keep the size of what they are given, about.

    Rows of a matrix overlap. Of more dimensions, such as those of experts, all matrices are one, in ``made``,
    because operators for many matrices take none whose rows overlap.
    """
    shape = tensor.shape
    if not tensor.is_floating_point():
        values = torch.zeros((), dtype=tensor.dtype, device=device).expand(shape)
    elif tensor.ndim > 2:
        key = shape[-2:], tensor.dtype
        if key not in made:
            made[key] = torch.randn(shape[-2:], generator=generator).to(device, tensor.dtype)
            made[key] /= shape[-1] ** 0.5
        values = made[key].expand(shape)
    elif tensor.ndim == 2:
        numbers = torch.randn(_STRIDE * shape[0] + shape[1], generator=generator) / shape[1] ** 0.5
        values = numbers.to(device, tensor.dtype).as_strided(shape, (_STRIDE, 1))
    else:
        values = (1 + torch.randn(shape, generator=generator) / 10).to(device, tensor.dtype)
    return nn.Parameter(values, False) if isinstance(tensor, nn.Parameter) else values


class _FewRows(TorchFunctionMode):
    """Lets a linear layer whose values are made up have few rows, which repeat: it then takes little time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not nn.functional.linear:
            return func(*args, **(kwargs or {}))
        return self._multiply(*args, **(kwargs or {}))

    @staticmethod
    def _multiply(
        input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        linear, n = nn.functional.linear, weight.shape[0]
        if weight.ndim != 2 or n <= _N_ROWS or weight.stride(0) >= weight.shape[1]:
            return linear(input, weight, bias)
        few = linear(input, weight[:_N_ROWS])
        result = few.repeat(*[1] * (few.ndim - 1), -(-n // _N_ROWS))[..., :n]
        return result if bias is None else result + bias


class _Forward:
    """Runs a stage, whose input is that with the name ``key``, up to what ``last`` returns; None: to the logits."""

    def __init__(self, plain: Callable[..., Any], key: str, last: nn.Module | None) -> None:
        self._plain = plain
        self._key = key
        self._is_last = last is None
        self._found: Any = None
        if last is not None:
            last.register_forward_hook(self._keep)

    def _keep(self, _: nn.Module, __: Any, output: Any) -> None:
        self._found = output[0] if isinstance(output, tuple) else output

    def __call__(self, given: torch.Tensor, **further: Any) -> torch.Tensor:
        """Return what the stage returns; the last one the loss, if ``further`` has labels."""
        output = self._plain(**{self._key: given}, use_cache=False, **further)
        of_last = output.loss if "labels" in further else output.logits
        result: torch.Tensor = of_last if self._is_last else self._found
        self._found = None
        return result
