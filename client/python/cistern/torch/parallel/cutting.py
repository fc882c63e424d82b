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
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from cistern.torch.stages import Absent

_SHAPE = (2, 4)  # Of the tokens that are tried.
_TOLERANCE = 1e-4
_STRIDE = 7  # Between rows of made-up values.
_N_ROWS = 64  # Of linear layers that are tried without values of their own.


class _Skipped(Absent):
    """A layer that other stages have. It returns the hidden states that it is given, whatever else it is given."""

    def forward(self, input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return input


class _NoTable(Absent):
    """A table whose rows the first stage adds."""

    def forward(self, input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return torch.zeros((), device=input.device)


class _Probe:
    """What modules of a whole model are given and return, when it runs with a few tokens."""

    def __init__(self, model: nn.Module, layers: nn.ModuleList, tokens: torch.Tensor) -> None:
        self.before: list[nn.Module] = []  # That return hidden states before the first layer.
        self.after: list[nn.Module] = []  # That return something after the last one.
        self.given: list[torch.Tensor] = []  # By layer, the hidden states that it is given.
        self._n_ran = 0
        outside = [m for m in model.modules() if not _is_in(m, layers) and not _has(m, layers)]
        hooks = [
            layer.register_forward_pre_hook(self._enters, with_kwargs=True) for layer in layers
        ]
        hooks += [layer.register_forward_hook(self._leaves) for layer in layers]
        hooks += [module.register_forward_hook(self._ran) for module in outside]
        try:
            self.result = _run(model, input_ids=tokens)
        finally:
            for hook in hooks:
                hook.remove()

    def _enters(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self.given.append(args[0] if args else kwargs["hidden_states"])

    def _leaves(self, layer: nn.Module, _: Any, output: Any) -> None:
        self._n_ran += 1
        self.last = output

    def _ran(self, module: nn.Module, _: Any, output: Any) -> None:
        if self._n_ran > 0:
            self.after.append(module)
        elif isinstance(output, torch.Tensor) and output.is_floating_point() and output.ndim == 3:
            self.before.append(module)


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
    layers = layers_of(model)
    cuts = _cuts(len(layers), n_stages, borders)
    if not 0 <= stage < n_stages:
        raise ValueError(
            f"cistern: stage {stage} is none of the {n_stages} stages 0 to {n_stages - 1}"
        )
    first, end = cuts[stage], cuts[stage + 1]
    is_first, is_last = stage == 0, stage == n_stages - 1
    places = {parameter.device for parameter in model.parameters()} - {torch.device("meta")}
    device = min(places, key=str, default=torch.device("cpu"))
    tokens = torch.arange(2, 2 + _SHAPE[0] * _SHAPE[1], device=device).reshape(_SHAPE)
    was_training = model.training
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(), values(model, device):
        names = {name for name, _ in model.named_parameters()}
        probe = _Probe(model, layers, tokens)
        kept = _kept(model, probe, is_first, is_last)
        for module, name, child in _places(model):
            if child in layers:
                if not first <= list(layers).index(child) < end:
                    module._modules[name] = _Skipped()
            elif child not in kept:
                module._modules[name] = (
                    _NoTable() if isinstance(child, nn.Embedding) else _Skipped()
                )
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
        _check(stage, model, given, wanted)
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


def _run(model: nn.Module, **given: Any) -> torch.Tensor:
    output = model(**given, use_cache=False)
    if not isinstance(getattr(output, "logits", None), torch.Tensor):
        raise ValueError(  # noqa: TRY004 (the model is the wrong one, not its type)
            f"cistern: {type(model).__name__} returns no logits: stages are cut out of causal language models of"
            " transformers"
        )
    logits: torch.Tensor = output.logits
    return logits


def layers_of(model: nn.Module) -> nn.ModuleList:
    """Return the layers of ``model``: the list of blocks with the most parameters. ValueError: there is none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    sizes = [sum(parameter.numel() for parameter in found.parameters()) for found in lists]
    if not lists or max(sizes) == 0:
        raise ValueError(
            f"cistern: {type(model).__name__} has no list of layers (ModuleList) to cut between: give attach"
            " stages of your own"
        )
    return lists[sizes.index(max(sizes))]


def _cuts(n_layers: int, n_stages: int, borders: Sequence[int] | None) -> list[int]:
    """Return the first layer of each stage, and the number of layers."""
    if not 1 <= n_stages <= n_layers:
        raise ValueError(
            f"cistern: {n_layers} layers cannot be cut into {n_stages} stages: 1 to {n_layers} are possible"
        )
    inner = [n_layers * i // n_stages for i in range(1, n_stages)]
    cuts = [0, *(inner if borders is None else borders), n_layers]
    if len(cuts) != n_stages + 1 or any(a >= b for a, b in pairwise(cuts)):
        raise ValueError(
            f"cistern: borders {list(borders or ())} do not cut {n_layers} layers into {n_stages} stages: they are"
            f" {n_stages - 1} numbers that increase from 1 to at most {n_layers - 1}"
        )
    return cuts


def _is_in(module: nn.Module, layers: nn.ModuleList) -> bool:
    return any(module is inner for inner in layers.modules())


def _has(module: nn.Module, layers: nn.ModuleList) -> bool:
    return any(inner is layers for inner in module.modules())


def _kept(model: nn.Module, probe: _Probe, is_first: bool, is_last: bool) -> set[nn.Module]:
    """Return the modules outside of the layers that a stage has."""
    gone: set[nn.Module] = set()
    if not is_first:
        gone |= set(probe.before)
    if not is_last:
        gone |= set(probe.after)
    if (
        is_last and not is_first
    ):  # The name of what is tied to the head is that of the first module that has it.
        tied = {id(p) for module in probe.after for p in module.parameters()}
        gone -= {m for m in probe.before if any(id(p) in tied for p in m.parameters())}
    return {module for module in model.modules() if module not in gone}


def _places(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    return [
        (module, name, child)
        for module in model.modules()
        for name, child in module._modules.items()
        if child is not None
    ]


def _check(
    stage: int, model: Callable[[Any], torch.Tensor], given: Any, wanted: torch.Tensor
) -> None:
    """Raise ValueError if a stage computes something else than its modules in the whole, or cannot run."""
    why = "computes something else than its modules in the whole model"
    try:
        result = model(given)
    except Exception as error:
        raise ValueError(_NOT_CUT.format(stage, f"cannot run ({error})")) from error
    is_alike = result.shape == wanted.shape and torch.allclose(
        result.float(), wanted.float(), rtol=_TOLERANCE, atol=_TOLERANCE * float(wanted.abs().max())
    )
    if not is_alike:
        raise ValueError(_NOT_CUT.format(stage, why))


_NOT_CUT = (
    "cistern: stage {0} {1}: the model cannot be cut into stages that give each other hidden states alone, such as"
    " because it changes what it is given as inputs_embeds. Give attach stages of your own, with the names of the"
    " whole"
)
