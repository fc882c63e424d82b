# SPDX-License-Identifier: Apache-2.0
"""Models that parallelize divides: the losses and norms of one process on the whole batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import cistern.torch as ct
import compared
import models
import torch
import torch.distributed as dist
import transformers
from cistern.torch.parallel import degrees
from gloo import run_ranks
from models import TorchCase
from torch import nn

N_STEPS = 5
ROWS = 8


def model_of(kind: str) -> Any:
    torch.manual_seed(7)
    model = models.llama(num_hidden_layers=5) if kind == "deep" else getattr(models, kind)()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def batch(step: int, tokens: int = 12, **further: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a batch whose labels count unevenly: none in some micro-batches, all in others."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(3, models.VOCABULARY, (ROWS, tokens), generator=generator)
    labels = ids.clone()
    labels[:2] = -100
    labels[3, : tokens // 2] = -100
    labels[6, 1:] = -100
    return {"input_ids": ids, "labels": labels} | further


def padded(step: int) -> dict[str, torch.Tensor]:
    found = batch(step)
    mask = torch.ones_like(found["input_ids"])
    mask[1, 9:] = mask[4, 5:] = 0
    found["labels"] = found["labels"].masked_fill(mask == 0, -100)
    return found | {"attention_mask": mask}


BATCHES = {"plain": batch, "padded": padded}


def divided(job: str, kind: str, how: Any, batches: str, options: dict[str, Any]) -> Any:
    """Train with a part of the model. Return losses, norms, and the weights that this rank has."""
    part = ct.parallelize(model_of(kind), how, batch=BATCHES[batches](0))
    store = ct.attach(part, job, **options)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    for step in range(N_STEPS):
        loss = part.step(**BATCHES[batches](step))
        assert not loss.requires_grad
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    weights = {name: store.read(name) for name, _ in part.named_parameters()}
    store.close()
    return results, weights


def on_meta(job: str, path: str, how: Any) -> list[tuple[float, float]]:
    """Train with parameters that have no memory before attach, which loads them."""
    model = model_of("llama")
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.to("meta")))
    part = ct.parallelize(model, how, batch=batch(0))
    store = ct.attach(part, job, load=path)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    for step in range(N_STEPS):
        loss = part.step(**batch(step))
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    store.close()
    return results


def one_process(kind: str, batches: str) -> list[tuple[float, float]]:
    model = model_of(kind)
    found = compared.one_process(
        model, N_STEPS, lambda step: [model(**BATCHES[batches](step)).loss]
    )
    return compared.summed(found)


class Products(TorchCase):
    def check(
        self, world: int, how: Any, kind: str = "llama", batches: str = "plain", **options: Any
    ) -> Any:
        name = f"{self.name}-{kind}"
        self.addCleanup(self.remove, name)
        got = run_ranks(world, divided, name, kind, how, batches, options)
        want = one_process(kind, batches)
        for results, _ in got:
            self.assertEqual(results, got[0][0])
            for (loss, norm), (wanted, norm_wanted) in zip(results, want, strict=True):
                self.assertAlmostEqual(loss, wanted, delta=1e-4 * wanted)
                self.assertAlmostEqual(norm, norm_wanted, delta=1e-4 * norm_wanted)
        return got

    def test_tp_2(self) -> None:
        self.check(2, {"tp": 2, "micro_batches": 2}, "qwen3")

    def test_pp_2(self) -> None:
        self.check(2, {"pp": 2, "micro_batches": 4}, "gpt2", "padded")

    def test_tp_2_pp_2(self) -> None:
        self.check(4, {"tp": 2, "pp": 2, "schedule": "gpipe"}, "llama", "padded")

    def test_dp_2_tp_2(self) -> None:
        self.check(4, {"tp": 2})

    def test_dp_2_pp_2(self) -> None:
        self.check(4, {"dp": 2, "pp": 2, "micro_batches": 4}, "qwen2")

    def test_cp_2(self) -> None:
        self.check(2, {"cp": 2})

    def test_interleaved(self) -> None:
        self.check(
            2,
            {"pp": 2, "schedule": "interleaved", "micro_batches": 4, "borders": [1, 2, 3]},
            "deep",
        )

    def test_recompute(self) -> None:
        self.check(2, {"pp": 2, "recompute": [1, 2], "borders": [1]})

    def test_recompute_without_stages(self) -> None:
        self.check(2, {"dp": 2, "recompute": 1, "micro_batches": 2})
        self.check(2, {"tp": 2, "recompute": True}, "gpt2")


def under_autocast(job: str, how: Any) -> list[tuple[float, float]]:
    """Train in one block of autocast."""
    part = ct.parallelize(model_of("llama"), how, batch=batch(0))
    store = ct.attach(part, job)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    with torch.autocast("cpu", torch.bfloat16):
        for step in range(N_STEPS):
            loss = part.step(**batch(step)).item()
            optimizer.step()
            results.append((loss, optimizer.norm.item()))
    store.close()
    return results


def by_hand(job: str) -> list[tuple[float, float]]:
    """Train with backward passes of the program's own, of two batches in each step."""
    part = ct.parallelize(model_of("llama"), {"dp": 2}, batch=batch(0))
    store = ct.attach(part, job, micro_batches=2)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    for step in range(N_STEPS):
        losses = []
        for i in range(2):
            loss = part(**batch(2 * step + i)).loss
            (loss / 2).backward()
            losses.append(loss.item())
        optimizer.step()
        results.append((sum(losses) / 2, optimizer.norm.item()))
    store.close()
    return results


def killed_once(job: str, dies: bool) -> Any:
    """Train; with ``dies``, the ranks end in the third step, as torchrun kills them."""
    part = ct.parallelize(model_of("llama"), {"pp": 2}, batch=batch(0))
    store = ct.attach(part, job)
    optimizer = store.optimizer(lr=3e-3)
    while store.step_no < N_STEPS:
        part.step(**batch(store.step_no))
        if dies and store.step_no == 2:
            os._exit(0)
        optimizer.step()
    weights = {name: store.read(name) for name, _ in part.named_parameters()}
    store.close()
    return weights


def refused() -> list[str]:
    """Return what is raised for ways that two ranks cannot have."""
    texts = []
    ids = torch.full((4, 12), 5)
    zeros = {"input_ids": ids, "labels": ids, "attention_mask": torch.zeros_like(ids)}
    plain = {"input_ids": ids, "labels": ids}
    five = {"input_ids": torch.full((5, 12), 5), "labels": torch.full((5, 12), 5)}
    for kind, how, given in (
        ("llama", {"tp": 3}, plain),
        ("llama", {"dp": 2, "tp": 2}, plain),
        ("llama", {"tp": 2, "micro_batch": 2}, plain),
        ("llama", {"pp": 2, "schedule": "2f2b"}, plain),
        ("llama", {"dp": 2, "micro_batches": 3}, plain),
        ("llama", {"pp": 2, "schedule": "interleaved"}, plain),
        ("deep", {"pp": 2, "schedule": "interleaved", "micro_batches": 5}, five),
        ("llama", {"pp": 2, "borders": [1, 2]}, plain),
        ("llama", {"pp": 2, "recompute": [1]}, plain),
        ("llama", {"pp": 2, "micro_batches": 2}, plain | {"token_type_ids": ids}),
        ("llama", {"cp": 2}, zeros),
        ("llama", {"cp": 2}, {"input_ids": ids[:, :10], "labels": ids[:, :10]}),
        ("mixtral", {"dp": 2}, plain),
        ("bert", {"cp": 2}, plain),
        ("llama", {"dp": 2}, {}),
        ("llama", {"dp": 2}, {"input_ids": ids}),
        ("llama", {"dp": 2}, plain | {"attention_mask": ids[:3]}),
    ):
        try:
            ct.parallelize(model_of(kind), how, batch=given)
        except (TypeError, ValueError) as error:
            texts.append(str(error))
        else:
            texts.append("")
    part = ct.parallelize(model_of("llama"), {"pp": 2}, batch=plain)
    try:
        part(**plain)
    except RuntimeError as error:
        texts.append(str(error))
    part = ct.parallelize(model_of("llama"), {"dp": 2}, batch=batch(0))
    for given in (
        batch(dist.get_rank()),
        batch(0, attention_mask=torch.full((ROWS, 12), dist.get_rank())),
        {**batch(0), "num_items_in_batch": 70 + dist.get_rank()},
    ):
        try:
            part.step(**given)
        except ValueError as error:
            texts.append(str(error))
    return texts


def drawn() -> list[float]:
    """Return random numbers of a rank that divides tensors, and had other numbers."""
    model = model_of("llama")
    torch.manual_seed(dist.get_rank())
    ct.parallelize(model, {"tp": 2}, batch=batch(0))
    return torch.rand(4).tolist()


def seeded_apart() -> list[str]:
    """Return what a step raises, or "", if ranks that divide tensors are given other seeds: GPT-2 has dropouts."""
    texts = []
    for kind, has_dropout in (("llama", False), ("gpt2", True), ("gpt2", False)):
        model = model_of(kind)
        for module in model.modules():
            if isinstance(module, nn.Dropout) and has_dropout:
                module.p = 0.5
        part = ct.parallelize(model, {"tp": 2}, batch=batch(0)).train()
        torch.manual_seed(5)
        part.step(**batch(0))
        torch.manual_seed(dist.get_rank())
        try:
            part.step(**batch(0))
            texts.append("")
        except RuntimeError as error:
            texts.append(str(error))
    return texts


def discarded(job: str) -> float:
    """Return the norm of a step that is computed again, after gradients of other batches were discarded."""
    part = ct.parallelize(model_of("llama"), {}, batch=batch(0))
    store = ct.attach(part, job, micro_batches=2)
    optimizer = store.optimizer(lr=3e-3)
    part.step(**batch(0))
    optimizer.zero_grad()
    part.step(**batch(1))
    store.sync()
    assert optimizer.replay is not None
    optimizer.replay()
    optimizer.step()
    store.close()
    return optimizer.norm.item()


def trained(job: str | None, how: Any, folder: str) -> Any:
    """Let a Trainer train; without ``job``, in plain torch. Return the logged losses, and whether it evaluated."""
    args = transformers.TrainingArguments(
        output_dir=folder, use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1, max_steps=4,
        per_device_train_batch_size=8, gradient_accumulation_steps=2, learning_rate=3e-3,
        weight_decay=0.1, save_steps=2, seed=3,
    )  # fmt: skip
    data = [{k: v[i] for k, v in batch(step).items()} for step in range(5) for i in range(ROWS)]
    model = model_of("llama")
    if job is not None:
        model = ct.parallelize(model, how, batch=batch(0))
        store = ct.attach(model, job, **ct.hf.options(model, args))
    trainer = transformers.Trainer(model, args, train_dataset=data, eval_dataset=data[:8])
    if job is not None:
        ct.hf.connect(trainer, store)
    speed = trainer.train().metrics
    assert round(speed["train_samples_per_second"] * speed["train_runtime"]) == 4 * 2 * ROWS
    trainer.save_model()
    try:
        told = trainer.evaluate()["eval_loss"]
    except RuntimeError as error:
        told = str(error)
    if job is not None:
        store.close()
    logs = trainer.state.log_history
    return [(log["loss"], log["grad_norm"]) for log in logs if "loss" in log], told


REFUSED = (
    r"tp=3 is 3, and torch.distributed has 2 ranks: give degrees whose product is one of 1, 2$",
    r"2 x 1 x 1 x 2 = 4, and torch.distributed has 2 ranks: dp=1 fits",
    "no key 'micro_batch': did you mean 'micro_batches'",
    "no schedule '2f2b'; there are gpipe, 1f1b",
    "4 rows does not divide into 3 micro-batches of each of 2 data ranks: give a multiple of 6.*micro_batches=1 or 2",
    "3 layers cannot be cut into 4 stages",
    "5 micro-batches for 2 ranks: wanted a multiple of the rounds",
    "2 borders make 3 stages",
    "recompute has 1 numbers, and there are 2 stages",
    "a pipeline cannot have 'token_type_ids'",
    "cannot be padded",
    "10 tokens cannot be shared by 2 ranks: give a multiple of 4",
    "MixtralForCausalLM has a term of its routers",
    "BertForMaskedLM is none",
    "the batch has no tensors",
    "LlamaForCausalLM returns no loss",
    "'attention_mask' has the shape .3, 12., and the batch has 4 rows",
    "stages of a pipeline, of which none is the model: part.step",
    "the ranks were given different batches.*differs: 'input_ids', 'labels'\\. Give",
    "the ranks were given different batches.*differs: 'attention_mask'\\. Give",
    "the ranks were given different batches.*differs: 'num_items_in_batch'\\. Give",
)


def interrupted(job: str, socket: str, how: Any, pid: int, dies_in: tuple[int, int]) -> Any:
    """Train while the daemon is killed once, in the middle of a pass of rank 1. Return losses, norms, and weights."""
    part = ct.parallelize(model_of("llama"), how, batch=batch(0))
    store = ct.attach(part, job, socket=socket)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    calls: list[int] = []

    def kill(*_: Any) -> None:
        calls.append(store.step_no)
        if pid and dist.get_rank() == 1 and (store.step_no, calls.count(store.step_no)) == dies_in:
            os.kill(pid, signal.SIGKILL)

    norms = [m for m in part.modules() if type(m).__name__ == "LlamaRMSNorm"]
    norms[0].register_forward_hook(kill)
    results = []
    for step in range(N_STEPS):
        loss = part.step(**batch(step))
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    weights = {name: store.read(name) for name, _ in part.named_parameters()}
    store.close()
    return results, weights, calls


class KeptDaemon:
    """A daemon on a socket of its own, under a service manager that starts it again and keeps its memory."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.socket = f"{self._folder.name}/cistern.sock"
        config = Path(self._folder.name) / "empty.conf"
        config.touch()
        self._process = subprocess.Popen(
            [
                "tests/lib/notify_run",
                "--keep",
                "./cisternd",
                "--config",
                str(config),
                "--gpus",
                "none",
            ]
            + ["--socket", self.socket],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = int(self._told("PID=").removeprefix("PID="))
        self._told("READY=1")

    def _told(self, begin: str) -> str:
        assert self._process.stdout is not None
        return next(line.strip() for line in self._process.stdout if line.startswith(begin))

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()
        self._folder.cleanup()


class Meta(TorchCase):
    def test_parameters_that_attach_loads(self) -> None:
        for how in ({"tp": 2}, {"pp": 2}):
            self.addCleanup(self.remove, self.name + str(*how))
            with self.subTest(how), tempfile.TemporaryDirectory() as folder:
                model_of("llama").save_pretrained(folder)
                got = run_ranks(2, on_meta, self.name + str(*how), folder, how)
            for (loss, norm), wanted in zip(got[0], one_process("llama", "plain"), strict=True):
                self.assertAlmostEqual(loss, wanted[0], delta=1e-4 * wanted[0])
                self.assertAlmostEqual(norm, wanted[1], delta=1e-4 * wanted[1])


class Calls(TorchCase):
    def test_backward_passes_of_the_program(self) -> None:
        self.addCleanup(self.remove, self.name)
        first, second = run_ranks(2, by_hand, self.name)
        self.assertEqual(first, second)
        model = model_of("llama")
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for step, (loss, norm) in enumerate(first):
            losses = [model(**batch(2 * step + i)).loss for i in range(2)]
            (sum(losses) / 2).backward()
            wanted = nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
            optimizer.step()
            optimizer.zero_grad()
            self.assertAlmostEqual(loss, sum(losses).item() / 2, delta=1e-4 * loss)
            self.assertAlmostEqual(norm, wanted, delta=1e-4 * wanted)

    def test_autocast_around_all_steps(self) -> None:
        model = model_of("llama")

        def losses(step: int) -> list[torch.Tensor]:
            with torch.autocast("cpu", torch.bfloat16):
                return [model(**batch(step)).loss]

        want = compared.summed(compared.one_process(model, N_STEPS, losses))
        for world, how in ((1, {}), (2, {"dp": 2}), (2, {"pp": 2})):
            with self.subTest(how):
                name = self.name + str(*how)
                self.addCleanup(self.remove, name)
                for got in run_ranks(world, under_autocast, name, {**how, "micro_batches": 2}):
                    for (loss, norm), (wanted, norm_wanted) in zip(got, want, strict=True):
                        # Sums over micro-batches are rounded to bf16 elsewhere.
                        self.assertAlmostEqual(loss, wanted, delta=3e-4 * wanted)
                        self.assertAlmostEqual(norm, norm_wanted, delta=5e-3 * norm_wanted)

    def test_ranks_that_divide_tensors_draw_alike(self) -> None:
        first, second = run_ranks(2, drawn)
        self.assertEqual(first, second)

    def test_ranks_that_divide_tensors_and_draw_other_numbers_are_told(self) -> None:
        for texts in run_ranks(2, seeded_apart):
            self.assertRegex(texts[1], "have drawn other random numbers.*give all of them one seed")
            self.assertEqual((texts[0], texts[2]), ("", ""))

    def test_a_step_is_computed_again_without_what_was_discarded(self) -> None:
        self.addCleanup(self.remove, self.name)
        model = model_of("llama")
        model(**batch(1)).loss.backward()
        wanted = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        (norm,) = run_ranks(1, discarded, self.name)
        self.assertAlmostEqual(norm, wanted, delta=1e-4 * wanted)

    def test_a_file_says_the_degrees(self) -> None:
        for text, wanted in (
            ('{"tp": 2, "recompute": 1}', {"tp": 2, "recompute": 1}),
            ('{"job": {"job": "gpt"}, "parallel": {"world": 4, "pp": 2}}', {"pp": 2}),
        ):
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                file.write(text)
                file.flush()
                found = degrees.of_file(file.name)
            self.assertEqual(found, wanted)
            self.assertEqual(degrees.parse(found, 4).dp, 2)

    def test_a_file_with_degrees_wants_parts(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write('{"parallel": {"tp": 2}}')
            file.flush()
            with self.assertRaisesRegex(ValueError, "that parallelize has not divided .*'tp'"):
                ct.attach(nn.Linear(2, 2), self.name, config=file.name)

    def test_what_cannot_be_is_refused(self) -> None:
        for texts in run_ranks(2, refused):
            for text, wanted in zip(texts, REFUSED, strict=True):
                with self.subTest(wanted):
                    self.assertRegex(text, wanted)


class Ends(unittest.TestCase):
    def test_groups_end_before_python(self) -> None:
        """A program that leaves them to Python is aborted now and then, after all its work."""
        here = str(Path(__file__).parent)
        with tempfile.TemporaryDirectory() as made:
            ran = subprocess.run(
                [sys.executable, "-c", LEAVES_GROUPS, made, here],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        self.assertEqual(ran.stdout, "initialised: False\n")


LEAVES_GROUPS = """
import atexit, sys
sys.path.insert(0, sys.argv[2])
import torch.distributed as dist
atexit.register(lambda: print("initialised:", dist.is_initialized()))
import cistern.torch as ct
import test_parallelize as tests
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
ct.parallelize(tests.model_of("llama"), dict(dp=1), batch=tests.batch(0)).step(**tests.batch(0))
"""


class Trainers(TorchCase):
    def check(self, how: Any, kind_of_end: Any) -> None:
        folders = [tempfile.TemporaryDirectory() for _ in range(2)]
        for folder in folders:
            self.addCleanup(folder.cleanup)
        self.addCleanup(self.remove, self.name)
        want, evaluated = trained(None, None, folders[0].name)
        for got, told in run_ranks(2, trained, self.name, how, folders[1].name):
            for (loss, norm), (wanted, norm_wanted) in zip(got, want, strict=True):
                self.assertAlmostEqual(loss, wanted, delta=2e-4 * wanted)
                self.assertAlmostEqual(norm, norm_wanted, delta=2e-4 * norm_wanted)
            kind_of_end(told, evaluated)
        saved = Path(folders[1].name) / "cistern" / "step-00000004"
        self.assertEqual(
            (saved / "model.safetensors").read_bytes(),
            (
                saved.parents[1] / "checkpoint-4/cistern/step-00000004/model.safetensors"
            ).read_bytes(),
        )
        loaded = transformers.AutoModelForCausalLM.from_pretrained(saved)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folders[0].name)
        for mine, other in zip(loaded.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)

    def test_a_pipeline(self) -> None:
        """Losses are those of one process, and an evaluation is refused in words."""
        self.check(
            {"pp": 2, "micro_batches": 4},
            lambda told, _: self.assertRegex(str(told), "stages of a pipeline do not evaluate"),
        )

    def test_data_ranks(self) -> None:
        self.check({"dp": 2}, lambda told, wanted: self.assertAlmostEqual(told, wanted, delta=1e-3))


class Faults(TorchCase):
    def check(self, how: Any, *dies_in: int) -> None:
        daemon = KeptDaemon()
        self.addCleanup(daemon.close)
        want = run_ranks(2, interrupted, "a", daemon.socket, how, 0, dies_in)
        got = run_ranks(2, interrupted, "b", daemon.socket, how, daemon.pid, dies_in)
        self.assertGreater(got[1][2].count(dies_in[0]), want[1][2].count(dies_in[0]))
        for a, b in zip(want, got, strict=True):
            self.assertEqual(a[0], b[0])
            for name, values in a[1].items():
                self.assertTrue(torch.equal(values, b[1][name]), name)

    def test_ranks_that_die_go_on_with_the_same_bits(self) -> None:
        for name in ("a", "b"):
            self.addCleanup(self.remove, self.name + name)
        want = run_ranks(2, killed_once, self.name + "a", False)
        with self.assertRaisesRegex(AssertionError, "it says nothing"):
            run_ranks(2, killed_once, self.name + "b", True)
        got = run_ranks(2, killed_once, self.name + "b", False)
        for a, b in zip(want, got, strict=True):
            for name, values in a.items():
                self.assertTrue(torch.equal(values, b[name]), name)

    def test_a_daemon_that_ends_in_a_pipeline(self) -> None:
        self.check({"pp": 2, "micro_batches": 4}, 2, 2)

    def test_a_daemon_that_ends_while_tensors_are_divided(self) -> None:
        self.check({"tp": 2}, 2, 1)


if __name__ == "__main__":
    unittest.main()
