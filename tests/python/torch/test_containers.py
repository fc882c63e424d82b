# SPDX-License-Identifier: Apache-2.0
"""Lists, dictionaries and tensors that modules are given and change, as with plain torch."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import cistern.torch as ct
import models
import torch
from models import TorchCase, square, tokens
from torch import nn
from torch.fx.immutable_collections import immutable_list


class Appends(nn.Linear):
    """Appends a loss of its own to a list, as layers of experts do."""

    def forward(self, x: torch.Tensor, losses: list[torch.Tensor]) -> torch.Tensor:
        y = super().forward(x)
        losses.append(y.square().mean())
        return y


class Sets(nn.Linear):
    """Sets an item of a dictionary, and returns nothing."""

    def forward(self, state: dict[str, Any]) -> None:
        state["h"] = torch.tanh(super().forward(state["h"]))
        state.setdefault("nested", []).append((state["h"].mean(), "name"))


class Returns(nn.Linear):
    """Returns the list that it was given, with an item replaced and one removed."""

    def forward(self, state: list[torch.Tensor]) -> list[torch.Tensor]:
        state[0] = torch.tanh(super().forward(state[0])) + state.pop()
        state.append(state[0] * 2)
        return state


class Adds(nn.Linear):
    """Adds to its input in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(super().forward(x.detach().clone()))


class PreActivated(nn.Linear):
    """Begins with a ReLU in place, as the blocks of some networks do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.relu_(x))


class Fills(nn.Linear):
    """Writes its output to a tensor that it was given."""

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(super().forward(x))


class Doubles(nn.Linear):
    """Changes its input in place without a gradient of the change."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.mul_(2)
        return super().forward(x)


class Model(nn.Module):
    def __init__(self, layer: type[nn.Linear], run: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(4, 4) for _ in range(3))
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self, x)


def collects(model: Model, x: torch.Tensor) -> torch.Tensor:
    losses: list[torch.Tensor] = []
    for i, layer in enumerate(model.layers):
        x = layer(x, losses=losses) if i % 2 else layer(x, losses)
    return torch.cat([x.flatten(), 3 * torch.stack(losses)])


def changes(model: Model, x: torch.Tensor) -> torch.Tensor:
    state: dict[str, Any] = {"h": x}
    for layer in model.layers:
        layer(state)
    return torch.cat([state["h"].flatten(), *(mean[None] for mean, _ in state["nested"])])


def hands_on(model: Model, x: torch.Tensor) -> torch.Tensor:
    state, first = [x, x], []
    for layer in model.layers:
        assert layer(state) is state
        first.append(state[0])
    return torch.cat([*first, *state])


def ignores(model: Model, x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    for layer in model.layers:
        layer(x)
    return x * x


def adds_up(model: Model, x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    for layer in model.layers:
        x = x + layer(x)
    return x


def of_views(model: Model, x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    for layer in model.layers:
        layer(x[:, :])
        x = x * 2
    return x * x


def into_rows(model: Model, x: torch.Tensor) -> torch.Tensor:
    """The first row has no gradient yet, the others are views of what has one."""
    out = torch.zeros(3, *x.shape).to(x)
    for i, layer in enumerate(model.layers):
        layer(x if i == 0 else out[i - 1].clone(), out[i])
    return out.square()


class Changes(TorchCase):
    """The caller of a module that changes a tensor in place goes on with what has changed."""

    def test_gradients_are_those_of_torch(self) -> None:
        for layer, run in (
            (Adds, ignores),
            (Adds, adds_up),
            (Adds, of_views),
            (PreActivated, adds_up),
            (Fills, into_rows),
            (Doubles, adds_up),
        ):
            for units in ([], [""]):
                with self.subTest(layer=layer.__name__, run=run.__name__, units=units):
                    twin, store = self.twins(lambda c=layer, r=run: Model(c, r), units=units)
                    self.compare_steps(twin, store, loss=square)
                    self.compare_gradients_of_input(twin, store)
                    store.close(remove=True)

    def compare_gradients_of_input(self, twin: nn.Module, store: ct.Store) -> None:
        models.copy_weights(store, twin)
        grads = []
        for net in (twin, store.model):
            x = torch.linspace(-1, 1, 12).reshape(3, 4).to(torch.bfloat16).requires_grad_()
            net(x).float().sum().backward()
            grads.append(x.grad)
        self.assertTrue(torch.equal(*grads))

    def test_a_leaf_is_refused_as_by_torch(self) -> None:
        twin, store = self.twins(lambda: nn.Sequential(PreActivated(4, 4), nn.Linear(4, 4)))
        for model in (twin, store.model):
            x = torch.ones(3, 4, dtype=torch.bfloat16, requires_grad=True)
            with self.assertRaisesRegex(RuntimeError, "a leaf Variable that requires grad"):
                model(x)


class Containers(TorchCase):
    def test_changes_of_a_module_are_seen_by_its_caller(self) -> None:
        for layer, run in ((Appends, collects), (Sets, changes), (Returns, hands_on)):
            for units in ([], [""]):
                with self.subTest(layer=layer.__name__, units=units):
                    twin, store = self.twins(lambda c=layer, r=run: Model(c, r), units=units)
                    self.compare_steps(twin, store, loss=square)
                    with torch.no_grad():
                        self.assertEqual(
                            square(store.model, tokens()), square(store.model, tokens())
                        )
                    store.close(remove=True)

    def test_changes_that_torch_refuses_are_refused_in_its_words(self) -> None:
        class Moves(nn.Linear):
            def forward(self, state: dict[str, torch.Tensor]) -> None:
                state["before"] = state["h"]
                state["h"] = super().forward(state["h"]).chunk(1)[0]

        def run(model: Model, x: torch.Tensor) -> torch.Tensor:
            state = {"h": x}
            for layer in model.layers:
                layer(state)
                state["h"].mul_(2)
            return state["h"]

        twin, store = self.twins(lambda: Model(Moves, run))
        for model in (twin, store.model):
            with self.assertRaisesRegex(
                RuntimeError, "Such functions do not allow the output views to be modified inplace"
            ):
                square(model, tokens())

    def test_what_a_module_leaves_alone_is_the_same_object(self) -> None:
        """Also after an exception, and where the module was given a copy of a weight in a list."""
        seen: list[Any] = []

        class Layer(nn.Linear):
            def forward(self, items: list[torch.Tensor], fails: bool = False) -> torch.Tensor:
                if fails:
                    raise OverflowError
                return super().forward(items[0]) * items[1]

        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.full((4,), 2.0))
                self.layers = nn.ModuleList(Layer(4, 4) for _ in range(2))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in self.layers:
                    items = [x, self.scale]
                    y = layer(items)
                    try:
                        layer(items, fails=True)
                    except OverflowError:
                        seen.append(items[0] is x and items[1] is self.scale)
                    x = y
                return x

        twin, store = self.twins(Scaled)
        self.compare_steps(twin, store, loss=square)
        self.assertEqual(seen, [True] * len(seen))
        self.assertGreater(len(seen), 0)

    def test_lists_and_tuples_of_a_subclass_stay_what_they_are(self) -> None:
        class Both(list[torch.Tensor]):
            note = ""

        class Pair(tuple[torch.Tensor, ...]):
            note = ""

            def __new__(cls, one: torch.Tensor, other: torch.Tensor) -> Any:
                return super().__new__(cls, (one, other))

        class Layer(nn.Linear):
            def forward(self, x: torch.Tensor) -> tuple[Both, Pair]:
                y = super().forward(x).chunk(1)[0]
                both, pair = Both([x, y]), Pair(y, self.weight)
                both.note = pair.note = "note"
                return both, pair

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList(Layer(4, 4) for _ in range(2))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in self.layers:
                    both, pair = layer(x)
                    seen.add((type(both), both.note, type(pair), pair.note))
                    x = both[0] + both[1] + pair[0] * pair[1].mean()
                return x

        seen: set[Any] = set()
        twin, store = self.twins(Outer)
        self.compare_steps(twin, store, loss=square)
        self.assertEqual(seen, {(Both, "note", Pair, "note")})

    def test_lists_that_their_class_does_not_let_be_changed(self) -> None:
        class Layer(nn.Linear):
            def forward(self, x: torch.Tensor, given: Any) -> Any:
                y = super().forward(x) + given[0]
                return immutable_list(y.chunk(1)), immutable_list([y, self.weight])

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList(Layer(4, 4) for _ in range(2))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in self.layers:
                    one, two = layer(x, immutable_list([2 * x]))
                    seen.update((type(one), type(two)))
                    x = one[0] + two[0] * two[1].mean()
                return x

        seen: set[Any] = set()
        twin, store = self.twins(Outer)
        self.compare_steps(twin, store, loss=square)
        self.assertEqual(seen, {immutable_list})

    def test_a_parameter_in_one_that_the_module_keeps(self) -> None:
        """What it returns has a copy of the weight, and what it keeps has the weight of the next step."""

        class Both(list[torch.Tensor]):
            pass

        class Layer(nn.Linear):
            kept: Any = None

            def forward(self, x: torch.Tensor) -> Any:
                if self.kept is None:
                    self.kept = Both([self.weight]), OrderedDict(weight=self.weight)
                return super().forward(x), self.kept

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList(Layer(4, 4) for _ in range(2))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in self.layers:
                    y, (both, named) = layer(x)
                    x = y + both[0].sum() * named["weight"].mean()
                return x

        twin, store = self.twins(Outer)
        self.compare_steps(twin, store, loss=square)

    def test_tuples_keep_their_types(self) -> None:
        class Layer(nn.Linear):
            def forward(self, x: torch.Tensor, size: torch.Size) -> Any:
                return torch.max(super().forward(x).reshape(size), dim=0, keepdim=True)

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList(Layer(4, 4) for _ in range(2))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in self.layers:
                    x = layer(x, x.shape).values
                return x

        twin, store = self.twins(Outer)
        self.compare_steps(twin, store, loss=square)
