# SPDX-License-Identifier: Apache-2.0
"""Divides an unmodified model, or a stage of one, among ranks that compute with the same data.

A model of transformers that has a plan (``tp_plan``) is divided by it. In any other one, pairs of linear
layers are looked for (``chains``): the first layers of a pair are cut by their outputs, the second ones by
their inputs, so that the ranks meet once, in a sum of what the second ones return. Whether that gives what
the whole gives is not known from the code, and is therefore tried, with a few tokens.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from cistern.torch.parallel.chains import Chain, chains_of, head_dim_of, is_linear, widths_of
from cistern.torch.parallel.collectives import sum_over
from cistern.torch.parallel.cutting import values
from cistern.torch.parallel.parameters import local
from cistern.torch.stages import Absent

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_SHAPE = (2, 4)  # Of the tokens that are tried.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}  # Relative to the largest element.
_ROUGH = 5e-2  # That of other types.
_MOST = 64  # Degrees that a refusal lists.
_COLUMNS, _PACKED, _ROWS = ("colwise",), ("packed_colwise",), ("rowwise",)  # Styles of plans.


def divide(model: Any, mesh: DeviceMesh, batch: Mapping[str, Any] | None = None) -> Any:
    """Divide ``model`` in place among the ranks of ``mesh``, which has one dimension, and return it.

    All ranks of the mesh have the same model, or the same stage of one, call this alike, and then call the
    model with the same data. ``batch`` is an example of what the model is called with; without it, a few
    tokens are. What cannot be divided stays whole on each rank, and a warning says what that is. Parameters
    that are divided are DTensors, so that a store knows which part a rank has.

    Parameters may be on the meta device. The plan is then believed, and of a model without a plan, the pairs
    are divided that have nothing but element by element functions between them, as in MLPs.

    TypeError: the model has neither a plan nor pairs of linear layers. ValueError: the mesh has several
    dimensions; its ranks are too many; the divided model computes something else than the whole. The model is
    then what it was.
    """
    if mesh.ndim != 1:
        raise ValueError(
            f"cistern: a model is divided among the ranks of a mesh of one dimension, not of {mesh.ndim}: give"
            " divide mesh['tp'], or the name that this dimension has"
        )
    return model if mesh.size() == 1 else _Division(model, mesh, batch).run()


class _Division:
    def __init__(self, model: nn.Module, mesh: DeviceMesh, batch: Mapping[str, Any] | None) -> None:
        self.model, self.mesh, self.n = model, mesh, mesh.size()
        self.called = type(model).__name__
        self.has_values = not any(parameter.is_meta for parameter in model.parameters())
        self.given = _given(model, batch) if self.has_values else {}

    def run(self) -> nn.Module:
        was_training = self.model.training
        self.model.eval()
        try:
            plan = _plan_of(self.model, self.n)
            if plan:
                self._by_plan(plan)
            else:
                self._by_chains()
        finally:
            self.model.train(was_training)
        return self.model

    def _by_plan(self, plan: dict[str, str]) -> None:
        modules = dict(self.model.named_modules())
        whole = _indivisible(modules, plan, self.n)
        if whole:
            self._say_whole(sorted(whole), _legal(modules, plan))
            plan = {
                name: style
                for name, style in plan.items()
                if not any(name.startswith(f"{parent}.") for parent in whole)
            }
        self._check_sizes(_sizes(modules, plan))
        self._try(lambda: _apply_plan(self.model, self.mesh, plan), [])

    def _by_chains(self) -> None:
        chains = self._chains()
        parents = {id(c): self._attention_of(c) for c in chains}
        if not chains:
            raise TypeError(_NO_PAIRS.format(self.called))
        plain = [c for c in chains if c.is_elementwise]
        self._check_sizes(
            {c.second_names[0]: (widths_of(c.seconds[0])[0], 1) for c in plain or chains}
        )
        heads = [
            c
            for c in chains
            if self.has_values and not c.is_elementwise and _has_whole_heads(c, self.n)
        ]
        tried = [plain + heads] if heads else []
        tried += [plain] if plain else []
        if not tried:
            raise ValueError(
                _NO_HEADS.format(self.called, self.n, _in_words(_degrees_of_heads(chains)))
            )
        for i, some in enumerate(tried):
            try:
                self._try(lambda some=some: self._cut(some), [s for c in some for s in c.seconds])  # type: ignore[misc]
            except ValueError:
                if i + 1 == len(tried):
                    raise
            else:
                left = [parents[id(c)] for c in chains if c not in some]
                if left:
                    self._say_whole(left, _degrees_of_heads(chains) if not heads else [])
                break

    def _chains(self) -> list[Chain]:
        if self.has_values:
            self._outputs_of_whole([])
            return chains_of(self.model, self._run)
        with values(self.model, torch.device("cpu")):
            self.given = _given(self.model, None)
            return chains_of(self.model, self._run)

    def _attention_of(self, chain: Chain) -> str:
        return chain.second_names[0].rpartition(".")[0]

    def _cut(self, chains: Iterable[Chain]) -> None:
        for chain in chains:
            for module in chain.firsts:
                _cut_outputs(module, self.mesh)
            for module in chain.seconds:
                _cut_inputs(module, self.mesh)

    def _check_sizes(self, sizes: Mapping[str, tuple[int, int]]) -> None:
        """Raise ValueError if ``n`` ranks cannot share the sizes, by name and with a number that must divide them."""
        for name, (size, packed) in sizes.items():
            legal = [k for k in range(1, _MOST + 1) if _can_share(size, packed, k)]
            if self.n not in legal:
                raise ValueError(_TOO_MANY.format(name, size, self.n, _in_words(legal)))

    def _say_whole(self, names: list[str], legal: list[int]) -> None:
        if self.mesh.get_local_rank() == 0:
            why = ", because they do not find out from shapes how many heads a rank has"
            if not self.has_values:
                why = ", because they cannot be tried on the meta device"
            elif legal:
                why = f": {_in_words(legal)} ranks can share their heads"
            warnings.warn(
                _WHOLE.format(self.n, self.called, names[0], len(names), why), stacklevel=5
            )

    def _run(self) -> torch.Tensor:
        """Return what the model returns for a few tokens."""
        output = self.model(**self.given) if "" not in self.given else self.model(self.given[""])
        found = getattr(output, "logits", getattr(output, "last_hidden_state", output))
        result: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return result

    def _try(self, cut: Callable[[], None], watched: list[nn.Module]) -> None:
        """Let ``cut`` divide the model. ValueError: it, or one of ``watched``, returns something else."""
        if not self.has_values:
            cut()
            return
        before = _Kept(self.model)
        wanted = self._outputs_of_whole(watched)
        why = ""
        try:
            cut()
            found = self._outputs(watched)
        except Exception as error:  # noqa: BLE001 (any code can be in the model)
            why = f"cannot run ({error})"
        else:
            if not all(map(_is_alike, found, wanted)):
                why = "computes something else than the whole"
        wrong = torch.tensor([float(bool(why))], device=self.mesh.device_type)
        dist.all_reduce(wrong, group=self.mesh.get_group())
        if wrong.item() > 0:
            before.restore()
            raise ValueError(
                _NOT_DIVIDED.format(self.called, self.n, why or "fails on another rank")
            )

    def _outputs_of_whole(self, watched: list[nn.Module]) -> list[torch.Tensor]:
        try:
            return self._outputs(watched)
        except Exception as error:
            raise ValueError(_NOT_TRIED.format(self.called, error)) from error

    def _outputs(self, watched: list[nn.Module]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []

        def keep(_: nn.Module, __: Any, output: Any) -> None:
            found.append(output.detach())

        hooks = [module.register_forward_hook(keep) for module in watched]
        try:
            with torch.no_grad(), torch.random.fork_rng():
                found.append(self._run())
        finally:
            for hook in hooks:
                hook.remove()
        return found


class _Kept:
    """All modules of a model as they are, with references to their parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._kept = [(vars(module), vars(module).copy()) for module in model.modules()]
        # Handles of hooks refer to the dictionaries in which these are.
        self._kept += [
            (value, value.copy())
            for _, held in list(self._kept)
            for value in held.values()
            if isinstance(value, dict)
        ]

    def restore(self) -> None:
        for there, held in self._kept:
            there.clear()
            there.update(held)


def _given(model: Any, batch: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the model is tried with; "": what it is given without a name."""
    device = next(model.parameters()).device
    shape = _SHAPE
    key = getattr(model.forward, "_key", None)  # That of a stage.
    if key == "inputs_embeds":
        generator = torch.Generator().manual_seed(5)
        hidden = torch.randn(*shape, model.config.hidden_size, generator=generator)
        return {"": hidden.to(device, next(model.parameters()).dtype)}
    if batch is not None and key is None:
        return {k: v[:2].to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    tokens = torch.arange(2, 2 + math.prod(shape), device=device).reshape(shape)
    return {"input_ids": tokens} if key is None else {"": tokens}


def _is_alike(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    tolerance = _TOLERANCE.get(wanted.dtype, _ROUGH)
    if found.shape != wanted.shape:
        return False
    error = (found.float() - wanted.float()).abs().max()
    return bool(error <= tolerance * wanted.float().abs().max())


# -- by the plan of transformers ---------------------------------------------------------------


def _plan_of(model: Any, n: int) -> dict[str, str]:
    """Return the style of each module and parameter; {}: the model has no plan, or adapters that it does not know."""
    if not getattr(model, "tp_plan", None) or any(
        hasattr(module, "base_layer") for module in model.modules()
    ):
        return {}
    from transformers.distributed.configuration_utils import DistributedConfig

    plan, _, _ = model._resolve_parallel_plans(DistributedConfig(tp_size=n))
    modules = dict(model.named_modules())
    plan = {
        name: style for name, style in plan.items() if not isinstance(modules.get(name), Absent)
    }
    for name, first in _tied(model).items():
        # A tied parameter is divided once, as its first module wants it; else its modules stay whole.
        if plan.pop(name, None) is not None and first not in plan:
            plan.pop(name.rpartition(".")[0], None)
    return plan


def _tied(model: nn.Module) -> dict[str, str]:
    """Return further names of parameters, and the first name of each."""
    first: dict[int, str] = {}
    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            found[name] = first[id(parameter)]
    return found


def _apply_plan(model: Any, mesh: DeviceMesh, plan: dict[str, str]) -> None:
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    tied = _tied(model)
    apply_tensor_parallelism(model, mesh, plan)
    for name, first in tied.items():
        parent, _, own = name.rpartition(".")
        model.get_submodule(parent)._parameters[own] = model.get_parameter(first)


def _heads(modules: Mapping[str, nn.Module], plan: Mapping[str, str]) -> dict[str, set[int]]:
    """Return the numbers of heads of attention, by its name, of which linear layers are cut."""
    found: dict[str, set[int]] = {}
    for name, style in plan.items():
        module: Any = modules.get(name)
        parent = name.rpartition(".")[0]
        width = head_dim_of(modules.get(parent))
        if style in (*_COLUMNS, *_ROWS) and width and is_linear(module):
            size = widths_of(module)[style in _COLUMNS]
            found.setdefault(parent, set()).update([size // width] if size % width == 0 else [])
    return found


def _indivisible(modules: Mapping[str, nn.Module], plan: Mapping[str, str], n: int) -> set[str]:
    """Return the names of attention whose heads ``n`` ranks cannot share."""
    return {name for name, heads in _heads(modules, plan).items() if any(h % n for h in heads)}


def _legal(modules: Mapping[str, nn.Module], plan: Mapping[str, str]) -> list[int]:
    of_all = math.gcd(*(h for heads in _heads(modules, plan).values() for h in heads))
    return [k for k in range(1, _MOST + 1) if of_all % k == 0]


def _sizes(modules: Mapping[str, nn.Module], plan: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return by name what ranks share: a number of rows or columns, and of how many matrices in one they are."""
    found: dict[str, tuple[int, int]] = {}
    for name, style in plan.items():
        parent, _, own = name.rpartition(".")
        parameter = getattr(modules[parent], own, None) if parent in modules else None
        if not isinstance(parameter, nn.Parameter) or parameter.ndim < 2:
            continue
        if style in _COLUMNS:
            found[name] = (parameter.shape[-2], 1)
        elif style in _PACKED:
            found[name] = (parameter.shape[-2], 2)
        elif style in _ROWS:
            found[name] = (parameter.shape[-1], 1)
    return found


def _can_share(size: int, packed: int, n: int) -> bool:
    """Return whether ``n`` ranks can share ``size`` rows, of ``packed`` matrices: each has some, and of each one."""
    if packed > 1:
        return size % (packed * n) == 0
    return -(-size // n) * (n - 1) < size


# -- by chains of linear layers ----------------------------------------------------------------


def _has_whole_heads(chain: Chain, n: int) -> bool:
    """Return whether ``n`` ranks can share the heads of a chain that is attention."""
    heads = _heads_of(chain)
    return bool(heads) and all(h % n == 0 for h in heads)


def _heads_of(chain: Chain) -> list[int]:
    """Return the numbers of heads that the layers of a chain have; []: that is not known."""
    width = chain.head_dim
    all_widths = [widths_of(m)[1] for m in chain.firsts] + [widths_of(m)[0] for m in chain.seconds]
    if not width or any(w % width for w in all_widths):
        return []
    return [w // width for w in all_widths]


def _degrees_of_heads(chains: Iterable[Chain]) -> list[int]:
    heads = [h for c in chains if not c.is_elementwise for h in _heads_of(c)]
    return [k for k in range(1, _MOST + 1) if heads and math.gcd(*heads) % k == 0]


def _is_transposed(module: nn.Module) -> bool:
    """Return whether the weight has a row for each input, as in GPT-2, and not for each output."""
    return type(module) is not nn.Linear


def _cut_parameter(module: nn.Module, name: str, mesh: DeviceMesh, dim: int) -> None:
    whole = module._parameters[name]
    if whole is not None:
        part = distribute_tensor(
            whole.detach(), mesh, [Shard(dim % whole.ndim)], src_data_rank=None
        )
        module._parameters[name] = nn.Parameter(part.clone(), requires_grad=whole.requires_grad)


def _product(module: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    weight = local(module.weight)
    if not _is_transposed(module):
        return nn.functional.linear(x, weight, bias)
    y = x @ weight
    return y if bias is None else y + bias


def _cut_outputs(module: Any, mesh: DeviceMesh) -> None:
    _cut_parameter(module, "weight", mesh, 1 if _is_transposed(module) else 0)
    _cut_parameter(module, "bias", mesh, 0)
    module.forward = functools.partial(_columns, module, mesh.get_group())


def _cut_inputs(module: Any, mesh: DeviceMesh) -> None:
    _cut_parameter(module, "weight", mesh, 0 if _is_transposed(module) else 1)
    module.forward = functools.partial(_rows, module, mesh.get_group())


def _columns(module: Any, group: Any, x: torch.Tensor) -> torch.Tensor:
    bias = None if module.bias is None else local(module.bias)
    return _product(module, sum_over(x, [], [group]), bias)


def _rows(module: Any, group: Any, x: torch.Tensor) -> torch.Tensor:
    y = sum_over(_product(module, x, None), [group], [])
    return y if module.bias is None else y + module.bias


# -- words -------------------------------------------------------------------------------------


def _in_words(degrees: list[int]) -> str:
    return ", ".join(map(str, degrees)) if degrees else "no number of"


_NO_PAIRS = (
    "cistern: {0} has neither a plan (tp_plan) nor pairs of linear layers (nn.Linear, or Conv1D of transformers)"
    " of which one takes what the other returns, so that ranks cannot divide it: divide its layers by"
    " parallelize_module of torch"
)
_NO_HEADS = (
    "cistern: {0} has pairs of linear layers in its attention alone, of which {1} ranks cannot share the heads."
    " Numbers of ranks that can: {2}"
)
_TOO_MANY = "cistern: '{0}' has a dimension of {1}, which {2} ranks cannot share. Numbers of ranks that can: {3}"
_NOT_TRIED = (
    "cistern: {0} is tried before it is divided, and cannot run ({1}): give divide a batch, with what the model is"
    " called with"
)
_NOT_DIVIDED = (
    "cistern: {0}, divided among {1} ranks, {2}. It is as it was. Divide its layers by parallelize_module of"
    " torch, or use no tensor parallelism"
)
_WHOLE = "cistern: {0} ranks divide {1}, but for {3} modules, such as '{2}', which each rank has whole{4}"
