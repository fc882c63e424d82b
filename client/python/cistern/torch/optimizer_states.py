# SPDX-License-Identifier: Apache-2.0
"""Moments of a job as the state of an optimizer of torch, and the reverse.

    {"state": {0: {"step": 7, "exp_avg": ..., "exp_avg_sq": ..., "master": ...}, ...},
     "param_groups": [{"lr": ..., "params": [0, ...], "param_names": ["head.weight", ...]}, ...]}

That is the form of ``torch.optim.AdamW``, which ignores ``master``: the master weights of a parameter in
bf16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cistern._abi import Dtype, State, Status
from cistern.errors import CstError
from cistern.torch import shards, weights
from cistern.torch.lending import Tensor

if TYPE_CHECKING:
    from cistern.torch.store import Store

_KEYS = {"exp_avg": State.EXP_AVG, "exp_avg_sq": State.EXP_AVG_SQ, "master": State.MASTER}
#: Options of torch.optim.AdamW that say how it computes, and not what.
_HOW = {"foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
#: Those that a job does not have.
_WITHOUT = ("amsgrad", "maximize")


class Loaded(NamedTuple):
    """What a state of an optimizer says."""

    states: dict[Tensor, dict[State, torch.Tensor]]
    steps: int
    n_skipped: int  #: How many of the steps have changed nothing.
    missed: dict[Tensor, int]  #: In how many of the other steps each tensor was skipped.
    groups: list[dict[str, Any]]  #: What the groups of the optimizer are updated with.


def full(store: Store, groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the states of the trained parameters of ``store``, and ``groups`` of the optimizer."""
    stat = store.stat()
    tensors = [[_tensor(store, p) for p in group["params"]] for group in groups]
    of_model = [tensor for group in tensors for tensor in group]
    numbers = {tensor: i for i, tensor in enumerate(of_model)}
    missed = store.job.missed_steps()
    counts = {tensor: stat.step - stat.n_skipped - missed[tensor.number] for tensor in numbers}
    return {
        "job": store.job.name,
        "step": stat.step,
        "n_skipped": stat.n_skipped,
        "state": {
            i: {"step": torch.tensor(float(counts[tensor])), **_states(store, tensor)}
            for tensor, i in numbers.items()
            if counts[tensor] > 0
        },
        "param_groups": [
            {k: v for k, v in group.items() if k != "params"}
            | dict.fromkeys(_WITHOUT, False)
            | {
                "params": [numbers[t] for t in of_group],
                "param_names": [t.name for t in of_group],
            }
            for group, of_group in zip(groups, tensors, strict=True)
        ],
    }


def _tensor(store: Store, parameter: torch.nn.Parameter) -> Tensor:
    tensor = store.tensor_of(parameter)
    assert tensor is not None
    return tensor


def _states(store: Store, tensor: Tensor) -> dict[str, torch.Tensor]:
    found = {}
    for key, state in _KEYS.items():
        if state is State.MASTER and tensor.dtype is not Dtype.BF16:
            continue
        try:
            found[key] = shards.like(tensor.parameter, store.read_part(tensor, state))
        except CstError as error:
            if error.status != Status.EUNSUPPORTED or state is not State.EXP_AVG_SQ:
                raise  # Else the optimizer has one moment.
    return found


def loaded(
    store: Store, groups: Sequence[Mapping[str, Any]], state_dict: Mapping[str, Any]
) -> Loaded:
    """Return what ``state_dict`` says, for an optimizer with ``groups``.

    ValueError: it is the state of other parameters or of another kind of optimizer, or parameters have
    made different numbers of steps.
    """
    saved = state_dict["param_groups"]
    for group in saved:
        wrong = [f"with {name}=True" for name in _WITHOUT if group.get(name)]
        if wrong or "betas" not in group:
            kind = wrong[0] if wrong else "without betas"
            raise ValueError(f"cistern: this is the state of an optimizer {kind}, and not of AdamW")
    states: dict[Tensor, dict[State, torch.Tensor]] = {}
    counts: dict[Tensor, int] = {}
    for number, tensor in _places(store, groups, saved):
        entry = dict(state_dict["state"].get(number, {}))
        if tensor is not None and tensor.trains:
            counts[tensor] = int(entry.pop("step", 0))
            states[tensor] = _checked(tensor, entry)
            _check_moments(store, tensor, states[tensor])
    most = max(counts.values(), default=0)
    steps, n_skipped = int(state_dict.get("step", most)), int(state_dict.get("n_skipped", 0))
    missed = {tensor: steps - n_skipped - count for tensor, count in counts.items()}
    ahead = [tensor.name for tensor, n in missed.items() if n < 0]
    if ahead:
        raise ValueError(f"cistern: parameter '{ahead[0]}' has made more steps than this state has")
    behind = [tensor.name for tensor, n in missed.items() if n != 0]
    if behind and not store.skips_unused:
        raise ValueError(
            f"cistern: {len(behind)} parameters, such as '{behind[0]}', have made fewer than"
            f" {steps - n_skipped} steps in this state, because they had no gradients. Give attach"
            " unused='skip': without it, all parameters make the same steps"
        )
    mine = [
        {
            k: _number(v)
            for k, v in g.items()
            if k not in {*_HOW, *_WITHOUT, "params", "param_names"}
        }
        for g in saved
    ]
    return Loaded(states, steps, n_skipped, missed, mine)


def _places(
    store: Store, groups: Sequence[Mapping[str, Any]], saved: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Any, Tensor | None]]:
    """Yield each number of a parameter of ``saved``, and which tensor it is; None: none of the store."""
    if all("param_names" in group for group in saved):
        named = dict(store.model.named_parameters(remove_duplicate=False))
        for group in saved:
            for number, name in zip(group["params"], group["param_names"], strict=True):
                if name not in named:
                    raise ValueError(f"cistern: the model has no parameter '{name}'")
                yield number, store.tensor_of(named[name])
        return
    sizes = [len(group["params"]) for group in saved]
    order = [list(group["params"]) for group in groups]
    if sizes != [len(group) for group in order]:
        order = [list(store.model.parameters())]  # The frozen ones, too.
    if sizes != [len(group) for group in order]:
        raise ValueError(
            f"cistern: the groups of this state have {sizes} parameters, and those of the store"
            f" {[len(group['params']) for group in groups]}: give attach the same groups"
            " (param_group)"
        )
    for group, parameters in zip(saved, order, strict=True):
        yield from zip(group["params"], map(store.tensor_of, parameters), strict=True)


def _check_moments(store: Store, tensor: Tensor, states: Mapping[State, torch.Tensor]) -> None:
    """Raise ValueError if the optimizer of ``tensor`` has other moments than ``states``, if any."""
    moments = {key for key, state in _KEYS.items() if state in states} - {"master"}
    wanted = {"exp_avg"}
    if moments and weights.has_second_moment(store.job, tensor.number):
        wanted.add("exp_avg_sq")
    if moments and moments != wanted:
        raise ValueError(
            f"cistern: the state of parameter '{tensor.name}' is that of another optimizer: it has"
            f" {' and '.join(sorted(moments))}, and the job's optimizer has {' and '.join(sorted(wanted))}"
        )


def _checked(tensor: Tensor, entry: Mapping[str, Any]) -> dict[State, torch.Tensor]:
    """Return the states of ``tensor`` that are in ``entry``."""
    for key, values in entry.items():
        if key not in _KEYS:
            raise ValueError(
                f"cistern: the state of parameter '{tensor.name}' has an unknown '{key}'"
            )
        if tuple(values.shape) != tuple(tensor.parameter.shape):
            raise ValueError(
                f"cistern: {key} of parameter '{tensor.name}' has the shape {tuple(values.shape)}, the"
                f" parameter {tensor.shape}"
            )
    return {_KEYS[key]: values for key, values in entry.items()}


def _number(value: Any) -> Any:
    """Return a learning rate that is a tensor as a number, and all else as it is."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
