# SPDX-License-Identifier: Apache-2.0
"""What the units of an unmodified model cost, from one forward pass that computes nothing.

The pass runs on fake tensors, which have shapes and no memory, in place of the model's parameters and
buffers. Attention that calls scaled_dot_product_attention counts as the fused one that GPUs run, which keeps
no scores; what else torch would choose without a GPU does not matter.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from cistern.torch.parallel.cuts import layers_of

_NOT_RUN = (
    "cistern: the model cannot be profiled, because its forward pass does not run on tensors without values: {0}."
    " A plan then needs the costs of the operators by hand: ct.describe without batch= writes the file that"
    " cistern plan reads"
)


@dataclass
class Cost:
    """What a unit costs in the forward pass of the batch."""

    flops: float = (
        0.0  #: As torch.utils.flop_counter counts: two for a multiplication and its addition.
    )
    kept_bytes: int = 0  #: Kept for the backward pass, without parameters. What two units keep is the first one's.
    #: That tensor parallelism sums, by the model's own plan; a gather counts half, as it moves half as much.
    sum_bytes: int = 0
    #: Of the one tensor that later layers get from this and earlier ones; 0: no cut is possible after the unit.
    out_bytes: int = 0

    def share(self, n: int) -> Cost:
        """Return the cost of one of ``n`` equal parts of the batch."""
        return Cost(
            self.flops / n,
            math.ceil(self.kept_bytes / n),
            math.ceil(self.sum_bytes / n),
            math.ceil(self.out_bytes / n),
        )


@dataclass
class Profile:
    """What one forward pass has shown. The batch is the one that was given."""

    units: dict[str, Cost]  #: In the order in which they run first.
    n_layers: int  #: Layers between which there can be cuts; 0: the model has no list of layers.
    heads: int  #: Degrees of tensor parallelism divide it; 0: the model has no plan for it.
    n_rows: int  #: Of the batch; 0: its tensors have no common first dimension.
    n_fused: int  #: Calls of fused attention; other attention keeps its scores.

    def share(self, n: int) -> Profile:
        """Return the profile of one of ``n`` equal parts of the batch."""
        units = {name: cost.share(n) for name, cost in self.units.items()}
        return Profile(units, self.n_layers, self.heads, self.n_rows // n, self.n_fused)


def profile(model: nn.Module, batch: Mapping[str, Any], units: Mapping[str, nn.Module]) -> Profile:
    """Return what ``units`` of ``model`` cost for ``model(**batch)``, in a forward pass in training mode.

    The model is real or on the meta device, and does not change; no memory is allocated for tensors. What runs
    outside of the units counts to the unit that ran before, or to the first one. A cut is possible after a layer
    if later layers need one tensor that depends on parameters: what depends on the batch alone, such as masks and
    rotary tables, each stage makes itself.

    TypeError: ``batch`` is no mapping. ValueError: the forward pass does not run on tensors without values.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"cistern: batch is a {type(batch)}: a mapping of names to tensors is required, with which the model"
            " is called, such as {'input_ids': ids, 'labels': ids}"
        )
    try:
        return _run(model, batch, units)
    except Exception as error:
        raise ValueError(_NOT_RUN.format(f"{type(error).__name__}: {error}"[:600])) from error


def heads_of(model: nn.Module) -> int:
    """Return a number that degrees of tensor parallelism divide: of the heads of the keys. 0: there is no plan."""
    config = getattr(model, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    if not getattr(model, "_tp_plan", None) or not isinstance(heads, int):
        return 0
    of_keys = getattr(config, "num_key_value_heads", None)
    return math.gcd(heads, of_keys) if isinstance(of_keys, int) else heads


def rows_of(batch: Mapping[str, Any]) -> int:
    """Return the number of rows of the tensors of ``batch``; 0: they have different ones."""
    rows = {t.shape[0] if t.ndim > 0 else 0 for t in batch.values() if isinstance(t, torch.Tensor)}
    return rows.pop() if len(rows) == 1 else 0


def _run(model: nn.Module, batch: Mapping[str, Any], units: Mapping[str, nn.Module]) -> Profile:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        values = {id(t): _fake(t) for t in (*model.parameters(), *model.buffers())}
        given = tree_map(lambda v: _fake(v) if isinstance(v, torch.Tensor) else v, batch)
    named = {
        name: values[id(t)]
        for name, t in (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
    }
    if "use_cache" in inspect.signature(model.forward).parameters:
        given.setdefault("use_cache", False)
    try:
        layers = list(layers_of(model))
    except ValueError:
        layers = []
    watch = _Watch(values[id(p)] for p in model.parameters())
    with ExitStack() as stack:
        stack.enter_context(_training(model))
        stack.enter_context(_hooks(watch, model, units, layers))
        stack.enter_context(torch.random.fork_rng(devices=()))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda t: t))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(fake)
        stack.enter_context(watch)
        fused = stack.enter_context(_Fused())
        torch.func.functional_call(model, named, (), dict(given))
    return Profile(
        watch.costs(list(units), layers),
        len(layers),
        heads_of(model),
        rows_of(batch),
        fused.n_calls,
    )


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    """Return a fake tensor like ``tensor``. A mode of fake tensors is on."""
    made = torch.empty_strided(
        tensor.shape,
        tensor.stride(),
        dtype=tensor.dtype,
        device="cpu",
        requires_grad=tensor.requires_grad,
    )
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


class _Fused(TorchFunctionMode):
    """Lets attention be torch's memory-efficient one, which takes masks and any dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.n_calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.scaled_dot_product_attention:
            out = self._attend(*args, **(kwargs or {}))
            if out is not None:
                return out
        return func(*args, **(kwargs or {}))

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor | None:
        if query.ndim != 4:
            return None
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
        self.n_calls += 1
        attend = torch.ops.aten._scaled_dot_product_efficient_attention
        out: torch.Tensor = attend(
            query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
        )[0]
        return out


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Let ``model`` be in training mode, in which dropout keeps its masks."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.train()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def _hooks(
    watch: _Watch,
    model: nn.Module,
    units: Mapping[str, nn.Module],
    layers: list[nn.Module],
) -> Iterator[None]:
    """Let ``watch`` know which unit and which layer runs, and what is summed."""
    hooks = []
    for number, layer in enumerate(layers):
        hooks.append(layer.register_forward_pre_hook(watch.layer_begins(number)))
    for name, module in units.items():
        hooks.append(module.register_forward_pre_hook(watch.unit_begins(name)))
        hooks.append(module.register_forward_hook(watch.unit_ends))
    plan = getattr(model, "_tp_plan", None) or {}
    for name, module in model.named_modules():
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name), "")
        if style.endswith("rowwise") or style == "moe_tp_experts":
            hooks.append(module.register_forward_hook(watch.sums(1.0)))
        elif style.endswith("gather_output"):
            hooks.append(module.register_forward_hook(watch.sums(0.5)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass
class _Held:
    """A storage. Its name is the address of its fake, which must not be used again."""

    storage: Any
    first_layer: int  # The layer that ran when it was made.
    is_made: bool  # From parameters, and not from the batch alone.
    is_kept: bool = False


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees all operations of a forward pass."""

    def __init__(self, parameters: Iterator[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._units: dict[str, Cost] = {}
        self._layers_of_units: dict[str, int] = {}
        self._rest = Cost()  # Of what runs before the first unit.
        self._cost = self._rest
        self._outer: list[Cost] = []
        self._layer = 0
        self._n_begun = 0
        self._is_chain = True  # The layers run once each, in their order.
        self._held: dict[int, _Held] = {}
        self._crossing: dict[int, dict[int, int]] = {}  # By layer, bytes by storage.
        self._parameters = set()
        for parameter in parameters:
            held = self._of(parameter)
            held.is_made = held.is_kept = True
            self._parameters.add(parameter.untyped_storage()._cdata)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func._overloadpacket
        if packet in flop_registry:
            self._cost.flops += flop_registry[packet](*args, **kwargs, out_val=out)
        is_made = False
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                is_made |= self._reads(tensor)
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._of(tensor).is_made |= is_made
        return out

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note what is kept for the backward pass."""
        held = self._of(tensor)
        if not held.is_kept:
            held.is_kept = True
            self._cost.kept_bytes += tensor.untyped_storage().nbytes()
        return tensor

    def unit_begins(self, name: str) -> Callable[..., None]:
        def begins(*_: Any) -> None:
            self._outer.append(self._cost)
            self._cost = self._units.setdefault(name, Cost())
            self._layers_of_units[name] = self._layer

        return begins

    def unit_ends(self, *_: Any) -> None:
        outer = self._outer.pop()
        if self._outer:  # Within another unit.
            self._cost = outer

    def layer_begins(self, number: int) -> Callable[..., None]:
        def begins(*_: Any) -> None:
            self._is_chain = self._is_chain and number == self._n_begun
            self._n_begun += 1
            self._layer = number

        return begins

    def sums(self, weight: float) -> Callable[..., None]:
        def ends(_: nn.Module, __: Any, output: Any) -> None:
            found = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
            self._cost.sum_bytes += int(weight * found[0].nbytes) if found else 0

        return ends

    def costs(self, names: Collection[str], layers: list[nn.Module]) -> dict[str, Cost]:
        """Return the costs of the units, those that did not run with the last ones."""
        units = dict(self._units)
        for name in names:
            units.setdefault(name, Cost())
        first = next(iter(units.values()))
        first.flops += self._rest.flops
        first.kept_bytes += self._rest.kept_bytes
        if self._is_chain and self._n_begun == len(layers):
            for number in range(1, len(layers)):
                crossing = self._crossing.get(number, {})
                before = [n for n in self._units if self._layers_of_units[n] < number]
                if len(crossing) == 1 and before:
                    units[before[-1]].out_bytes = next(iter(crossing.values()))
        return units

    def _of(self, tensor: torch.Tensor) -> _Held:
        storage = tensor.untyped_storage()
        return self._held.setdefault(storage._cdata, _Held(storage, self._layer, False))

    def _reads(self, tensor: torch.Tensor) -> bool:
        """Note that a tensor is used now. Return whether it was made from parameters."""
        held = self._of(tensor)
        name = tensor.untyped_storage()._cdata
        if held.is_made and name not in self._parameters:
            for number in range(held.first_layer + 1, self._layer + 1):
                self._crossing.setdefault(number, {})[name] = held.storage.nbytes()
        return held.is_made
