# SPDX-License-Identifier: Apache-2.0
"""What an error advises works: with it, training is that of plain torch."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cistern.torch as ct
import models
import torch
from models import TorchCase, loss_of, tokens
from torch import nn


class Vit(nn.Module):
    """A model whose caller uses another method than ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(4, 8)
        self.cls = nn.Parameter(torch.randn(1, 8))
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward_features(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        x = torch.cat([self.cls, self.patch(x)]) * scale
        for block in self.blocks:
            x = x + block(x).tanh()
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward_features(x).mean(0)


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vit = Vit()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.vit.forward_features(x, scale=0.5)[0]) + self.vit(x).mean()


def square(model: nn.Module, _: torch.Tensor) -> torch.Tensor:
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(models.DEVICE, next(model.parameters()).dtype)
    loss: torch.Tensor = model(x).float().square().sum()
    return loss


class WaysOut(TorchCase):
    def test_a_method_other_than_forward(self) -> None:
        store = self.attach(models.bf16(Caller))
        with self.assertRaises(RuntimeError) as caught:
            square(store.model, tokens())
        advised = re.findall(r"units=\['([^']+)'\]", str(caught.exception))
        self.assertIn("vit.forward_features", advised)
        store.close(remove=True)
        twin, store = self.twins(Caller, units=["vit.forward_features"])
        self.compare_steps(twin, store, loss=square)
        with self.assertRaises(TypeError):
            store.model.vit.forward_features()
        self.compare_steps(twin, store, loss=square)

    def test_embeddings_are_resized_before(self) -> None:
        _, store = self.twins(models.gpt2)
        with self.assertRaisesRegex(TypeError, "resize_token_embeddings before attach"):
            store.model.resize_token_embeddings(120)
        store.close(remove=True)
        model = models.gpt2()
        model.resize_token_embeddings(120, mean_resizing=False)
        model = models.bf16(lambda: model)
        self.compare_steps(copy.deepcopy(model), self.attach(model), loss=loss_of)

    def test_elements_are_clipped_by_hooks(self) -> None:
        twin, store = self.twins(lambda: nn.Linear(4, 4))
        optimizer = store.optimizer(lr=0.1)
        square(store.model, tokens()).backward()
        for clip in (
            lambda p: nn.utils.clip_grad_value_(p, 0.1),
            lambda p: nn.utils.clip_grad_norm_(p, 0.1, norm_type=float("inf")),
        ):
            with self.assertRaisesRegex(ValueError, r"register_hook\(lambda grad: grad\.clamp"):
                clip(store.model.parameters())
        optimizer.zero_grad()
        for parameter in store.model.parameters():
            parameter.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
        square(store.model, tokens()).backward()
        optimizer.step()
        square(twin, tokens()).backward()
        nn.utils.clip_grad_value_(twin.parameters(), 0.1)
        self.compare_gradients(twin, store, 0)

    def test_parts_are_clipped_as_stores_of_their_own(self) -> None:
        twin, store = self.twins(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        square(store.model, tokens()).backward()
        store.optimizer(lr=0.1)
        with self.assertRaisesRegex(ValueError, "stores of their own, are clipped one by one"):
            nn.utils.clip_grad_norm_(store.model[0].parameters(), 0.1)
        model = copy.deepcopy(twin)
        stores = [self.attach(part, f"part{i}") for i, part in enumerate(model)]
        optimizers = [part.optimizer(lr=0.1) for part in stores]
        square(model, tokens()).backward()
        square(twin, tokens()).backward()
        limits = (0.1, 0.5)
        ours = [
            nn.utils.clip_grad_norm_(part.parameters(), limit)
            for part, limit in zip(model, limits, strict=True)
        ]
        for optimizer in optimizers:
            optimizer.step()
        for part, limit, norm in zip(twin, limits, ours, strict=True):
            plain = nn.utils.clip_grad_norm_(part.parameters(), limit)
            torch.testing.assert_close(norm, plain.float().cpu(), rtol=1e-2, atol=0)

    def test_models_that_share_parameters(self) -> None:
        shared = nn.Linear(4, 4)
        pair = nn.ModuleDict(
            {"teacher": nn.Sequential(shared), "student": nn.Sequential(shared, nn.Linear(4, 4))}
        )
        self.attach(pair["teacher"], "teacher")
        with self.assertRaisesRegex(ValueError, r"attached together, such as nn\.ModuleDict"):
            ct.attach(pair["student"], "student", device=models.DEVICE)

    def test_sgd_without_betas(self) -> None:
        model = nn.Linear(4, 4).to(models.DEVICE)
        twin = copy.deepcopy(model)
        store = self.attach(model, optimizer="sgd")
        ours = store.optimizer(lr=0.1, betas=(0, 0), weight_decay=0.0)
        plain = torch.optim.SGD(twin.parameters(), lr=0.1)
        for _ in range(3):
            for each, optimizer in ((model, ours), (twin, plain)):
                square(each, tokens()).backward()
                optimizer.step()
                optimizer.zero_grad()
        for name, parameter in twin.named_parameters():
            torch.testing.assert_close(store.read(name), parameter.detach().cpu())


class Encoded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.GELU())
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x)) * 8


class Words(nn.Module):
    """A model of words, whose embedding others can have, too."""

    def __init__(self, embedding: nn.Embedding, width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.layer = nn.Linear(8, width)
        self.head = nn.Linear(width, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(x)).tanh())


class Recipes(TorchCase):
    """The code of a section of docs/python/steps.md, as it is there, beside plain torch."""

    def blocks(self) -> list[str]:
        page = Path(__file__).parents[3] / "docs" / "python" / "steps.md"
        section = page.read_text().partition("## Other ways to clip")[2].partition("\n## ")[0]
        found = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        self.assertEqual(len(found), 4)
        return found

    def run_block(self, code: str, **names: Any) -> None:
        for name in ("run7", "run7-encoder", "run7-head"):
            self.addCleanup(self.remove, name)
        names |= {"ct": ct, "torch": torch, "nn": nn}
        exec(compile(code, "steps.md", "exec"), names)  # noqa: S102 (it is in this tree)
        self.used = names
        stores = [*names.get("stores", ()), *([names["store"]] if "store" in names else ())]
        for store in stores:
            self.addCleanup(store.job.close)

    def batches(self) -> list[torch.Tensor]:
        return [torch.randn(6, 8).to(models.DEVICE) for _ in range(4)]

    def train_plain(
        self, model: nn.Module, loader: list[torch.Tensor], clip: Callable[[nn.Module], object]
    ) -> int:
        """Train as the README does. Return in how many steps ``clip`` has changed gradients."""
        optimizer, n_clipped = torch.optim.AdamW(model.parameters(), lr=0.1), 0
        for batch in loader:
            model(batch).square().mean().backward()
            before = [parameter.grad.clone() for parameter in model.parameters()]
            clip(model)
            pairs = zip(model.parameters(), before, strict=True)
            n_clipped += any(not torch.equal(p.grad, grad) for p, grad in pairs)
            optimizer.step()
            optimizer.zero_grad()
        return n_clipped

    def compare(self, model: nn.Module, twin: nn.Module) -> None:
        ours = model.state_dict()
        for name, plain in twin.state_dict().items():
            torch.testing.assert_close(ours[name], plain.cpu(), rtol=1e-4, atol=1e-5)

    def test_by_value(self) -> None:
        model = Encoded().to(models.DEVICE)
        twin, loader = copy.deepcopy(model), self.batches()
        store = self.attach(model)
        self.run_block(self.blocks()[0], model=model)
        optimizer = store.optimizer(lr=0.1)
        for batch in loader:
            model(batch).square().mean().backward()
            optimizer.step()
        n = self.train_plain(
            twin, loader, lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.01)
        )
        self.assertEqual(n, len(loader))
        self.compare(model, twin)

    def test_by_the_largest_element(self) -> None:
        model = Encoded().to(models.DEVICE)
        twin, loader = copy.deepcopy(model), self.batches()
        self.run_block(self.blocks()[1], model=model, loader=loader)
        n = self.train_plain(
            twin,
            loader,
            lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=float("inf")),
        )
        self.assertGreater(n, 0)
        self.compare(model, twin)

    def test_a_step_of_infinite_gradients_is_skipped(self) -> None:
        """Here the last one, so that the weights are those of the steps before."""
        model = Encoded().to(models.DEVICE)
        twin, loader = copy.deepcopy(model), self.batches()
        infinite = torch.zeros(6, 8).to(models.DEVICE)
        infinite[0] = 1e25
        self.run_block(self.blocks()[1], model=model, loader=[*loader, infinite])
        self.assertEqual(self.used["norm"], float("inf"))
        self.assertTrue(self.used["opt"].last.skipped)
        self.train_plain(
            twin,
            loader,
            lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=float("inf")),
        )
        self.compare(model, twin)

    def test_by_group(self) -> None:
        model = Encoded().to(models.DEVICE)
        twin, loader = copy.deepcopy(model), self.batches()
        self.run_block(self.blocks()[2], model=model, loader=loader)

        def clip(model: nn.Module) -> None:
            nn.utils.clip_grad_norm_(model.encoder.parameters(), 0.1)
            nn.utils.clip_grad_norm_(model.head.parameters(), 0.5)

        self.assertGreater(self.train_plain(twin, loader, clip), 0)
        self.compare(model, twin)

    def test_teacher_and_student(self) -> None:
        for frozen in (True, False):
            with self.subTest(frozen=frozen):
                embedding = nn.Embedding(20, 8)
                words = {"teacher": Words(embedding, 12), "student": Words(embedding, 6)}
                pair = nn.ModuleDict(words).to(models.DEVICE)
                twin = copy.deepcopy(pair)
                loader = [torch.randint(20, (3, 5)).to(models.DEVICE) for _ in range(4)]
                first, _, rest = self.blocks()[3].partition("\n")
                self.assertEqual(first, "teacher.requires_grad_(False)")
                if not frozen:
                    first += "\nstudent.requires_grad_(True)"
                self.run_block(f"{first}\n{rest}", loader=loader, **dict(pair.items()))
                of_student = twin["student"].named_parameters()
                trained = [p for name, p in of_student if not (frozen and "embedding" in name)]
                self.assertEqual(len(list(self.used["store"].trained_tensors())), len(trained))
                optimizer = torch.optim.AdamW(trained, lr=0.1)
                for batch in loader:
                    with torch.no_grad():
                        wanted = twin["teacher"](batch).softmax(-1)
                    loss = -(wanted * twin["student"](batch).log_softmax(-1)).sum(-1).mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                self.compare(self.used["store"].model, twin)
                self.used["store"].close(remove=True)
