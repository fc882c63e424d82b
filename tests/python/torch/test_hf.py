# SPDX-License-Identifier: Apache-2.0
"""Trainer of transformers, and accelerate alone, with a store and with plain torch."""

import copy
import itertools
import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import accelerate
import cistern.torch as ct
import models
import torch
import trainer_peer
import trainer_rank
import transformers
from cistern import State, Status
from models import TorchCase
from processes import CONTEXT, kept_handlers
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from transformers import Trainer, TrainingArguments

#: Largest relative difference of a loss from plain torch with fp32 master weights. There, clipping
#: and the sum over micro-batches round each gradient to bf16.
BOUND = 1e-3
OPTIONS = {
    "use_cpu": True,
    "report_to": [],
    "disable_tqdm": True,
    "logging_steps": 1,
    "save_strategy": "no",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 2,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 2,
    "weight_decay": 0.1,
    "max_grad_norm": 1.0,
}
NEVER = -1
CONSTANT = {"lr_scheduler_type": "constant", "warmup_steps": 0}


class MasterAdamW(torch.optim.AdamW):
    """AdamW of torch on fp32 copies of bf16 parameters."""

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        self.trained = [parameter for group in groups for parameter in group["params"]]
        copies = [
            {**g, "params": [nn.Parameter(p.detach().float()) for p in g["params"]]} for g in groups
        ]
        super().__init__(copies, **options)

    def masters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def step(self, closure: Any = None) -> None:
        for parameter, master in zip(self.trained, self.masters(), strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        super().step(closure)
        for parameter, master in zip(self.trained, self.masters(), strict=True):
            parameter.data.copy_(master)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.trained:
            parameter.grad = None


def decay_groups(model: nn.Module) -> list[dict[str, Any]]:
    """What Trainer does: no decay for biases and norms."""
    decaying = Trainer.get_decay_parameter_names(None, model)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for n, p in named if n in decaying], "weight_decay": 0.1},
        {"params": [p for n, p in named if n not in decaying], "weight_decay": 0.0},
    ]


def dataset(n: int = 24) -> list[dict[str, torch.Tensor]]:
    batches = torch.randint(3, models.VOCABULARY, (n, 12))
    return [{"input_ids": row, "labels": row} for row in batches]


def start_peer(job: str, dies_in: int) -> Any:
    process = CONTEXT.Process(target=trainer_peer.train, args=(job, dies_in))
    process.start()
    return process


def status_of(process: Any) -> int | None:
    process.join()
    return process.exitcode


class TrainerCase(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name
        self.model = models.bf16(models.gpt2)
        self.data = dataset()

    def arguments(self, name: str, **options: Any) -> TrainingArguments:
        output_dir = os.path.join(self.dir, name)
        return TrainingArguments(**{"output_dir": output_dir, **OPTIONS, **options})

    def trainer(self, job: str, attach: dict[str, Any] | None = None, **options: Any) -> Trainer:
        """Return a trainer of a copy of the model, which is in the store ``trainer.store``."""
        args = self.arguments(job, **options)
        model = copy.deepcopy(self.model)
        store = self.attach(model, job, **ct.hf.options(model, args), **(attach or {}))
        trainer = Trainer(model, args, train_dataset=self.data, eval_dataset=self.data[:4])
        ct.hf.connect(trainer, store)
        trainer.store = store
        return trainer

    def plain_trainer(self, **options: Any) -> Trainer:
        args = self.arguments("plain", **options)
        model = copy.deepcopy(self.model)
        optimizer = MasterAdamW(decay_groups(model), lr=args.learning_rate)
        return Trainer(
            model,
            args,
            train_dataset=self.data,
            eval_dataset=self.data[:4],
            optimizers=(optimizer, None),
        )


def train(trainer: Trainer) -> None:
    """Train from the same random numbers, whatever was computed before."""
    transformers.set_seed(trainer.args.seed)
    trainer.train()


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


class Training(TrainerCase):
    def compare(self, ours: Trainer, plain: Trainer) -> None:
        """The logs of all steps have the same losses, norms and rates, within the bound."""
        logs = [[e for e in t.state.log_history if "loss" in e] for t in (ours, plain)]
        self.assertEqual(len(logs[0]), len(logs[1]))
        for mine, theirs in zip(*logs, strict=True):
            self.assertEqual(mine["learning_rate"], theirs["learning_rate"])
            self.assertLess(abs(mine["loss"] - theirs["loss"]), BOUND * theirs["loss"], mine)
            ratio = mine["grad_norm"] / theirs["grad_norm"]
            self.assertLess(abs(ratio - 1), 0.02, (mine, theirs))

    def test_it_has_the_losses_of_plain_torch(self) -> None:
        """Accumulation, dropout, warm-up, clipping, evaluation, and processes that load data."""
        options = {"dataloader_num_workers": 2, "eval_strategy": "epoch"}
        ours, plain = self.trainer("ours", **options), self.plain_trainer(**options)
        for trainer in (plain, ours):
            train(trainer)
        self.compare(ours, plain)
        self.assertGreater(losses(plain)[0], losses(plain)[-1])
        norms = [e["grad_norm"] for e in ours.state.log_history if "loss" in e]
        self.assertGreater(max(norms), 1.0)  # So that clipping changes something.
        evaluated = [
            [e["eval_loss"] for e in t.state.log_history if "eval_loss" in e] for t in (ours, plain)
        ]
        self.assertEqual(len(evaluated[0]), 2)
        for mine, theirs in zip(*evaluated, strict=True):
            self.assertLess(abs(mine - theirs), BOUND * theirs)

    def test_generate_after_training_is_that_of_the_saved_model(self) -> None:
        ours = self.trainer("ours", max_steps=3)
        ours.train()
        ours.save_model(self.dir)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(self.dir, dtype=torch.bfloat16)
        batch = models.tokens(1)
        texts = [
            model.eval().generate(batch, max_new_tokens=8, do_sample=False)
            for model in (ours.model, loaded)
        ]
        self.assertTrue(torch.equal(*texts))

    def test_without_clipping(self) -> None:
        options = {"max_grad_norm": 0.0, "max_steps": 3}
        ours, plain = self.trainer("ours", **options), self.plain_trainer(**options)
        for trainer in (plain, ours):
            train(trainer)
        self.compare(ours, plain)
        self.assertEqual(ours.store.the_optimizer().last.clip, 1.0)

    def test_autocast_is_that_of_accelerate(self) -> None:
        options = {"max_steps": 1, "bf16": True}
        ours, plain = self.trainer("ours", **options), self.plain_trainer(**options)
        for trainer in (plain, ours):
            train(trainer)
            logits = trainer.model(self.data[0]["input_ids"][None]).logits
            self.assertEqual(logits.dtype, torch.float32)  # bf16 without autocast
        self.assertEqual(losses(ours), losses(plain))

    def test_parameters_without_decay_are_those_of_trainer(self) -> None:
        ours, plain = self.trainer("ours"), self.plain_trainer()
        groups = [
            [[p.shape for p in group["params"]] for group in optimizer.param_groups]
            for optimizer in (ours.optimizer, plain.optimizer)
        ]
        self.assertEqual(groups[0], groups[1])
        decays = [group["weight_decay"] for group in ours.optimizer.param_groups]
        self.assertEqual(decays, [0.1, 0.0])

    def test_counters_are_logged(self) -> None:
        class Recorder(transformers.TrainerCallback):
            def __init__(self) -> None:
                self.logs: list[dict[str, float]] = []

            def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
                self.logs.append(dict(logs))

        ours = self.trainer("ours", max_steps=4, eval_strategy="steps", eval_steps=2)
        recorder = Recorder()
        ours.callback_handler.callbacks.insert(1, recorder)  # Where those that report are.
        ours.train()
        training = [logs for logs in recorder.logs if "loss" in logs]
        self.assertEqual(len(training), 4)
        names = {"cistern_hit_rate", "cistern_wait_seconds", "cistern_exposed_seconds"}
        for logs in training:
            self.assertLessEqual(names, set(logs))
            self.assertGreaterEqual(logs["cistern_hit_rate"], 0)
            self.assertLessEqual(logs["cistern_hit_rate"], 1)
        stat = ours.store.stat()
        for name, total in (
            ("cistern_wait_seconds", stat.weight_wait_seconds),
            ("cistern_exposed_seconds", stat.exposed_seconds),
        ):
            self.assertLessEqual(sum(logs[name] for logs in training), total + 1e-9)
            self.assertTrue(all(logs[name] >= 0 for logs in training))
        others = [logs for logs in recorder.logs if "loss" not in logs]
        self.assertFalse(any(names & set(logs) for logs in others))
        self.assertAlmostEqual(ours.store.the_optimizer().last.loss, training[-1]["loss"], places=4)
        history = [e for e in ours.state.log_history if "loss" in e]
        self.assertTrue(all(names <= set(entry) for entry in history))

    def test_what_cannot_be_is_refused(self) -> None:
        ours = self.trainer("ours")
        for options, words in (
            ({"optim": "adafactor"}, "optimizer 'adafactor' is not known"),
            ({"torch_compile": True}, "leave torch_compile out"),
        ):
            other = Trainer(ours.model, self.arguments("other", **options), train_dataset=self.data)
            with self.assertRaisesRegex(ValueError, words):
                ct.hf.connect(other, ours.store)
        plain = self.plain_trainer()
        with self.assertRaisesRegex(ValueError, "not one of the store"):
            ct.hf.connect(plain, ours.store)


class Resuming(TrainerCase):
    def weights(self, trainer: Trainer) -> dict[str, torch.Tensor]:
        names = [name for name, _ in trainer.model.named_parameters()]
        return {name: trainer.store.read(name, State.MASTER) for name in names}

    def assert_equal_weights(self, one: Trainer, other: Trainer) -> None:
        weights = self.weights(other)
        for name, value in self.weights(one).items():
            self.assertTrue(torch.equal(value, weights[name]), name)

    def test_in_the_middle_of_an_epoch_with_the_same_bits(self) -> None:
        options = {"save_strategy": "steps", "save_steps": 4, "dataloader_num_workers": 2}
        whole = self.trainer("whole", **options)
        train(whole)
        self.assertEqual(whole.state.global_step, 12)
        checkpoint = os.path.join(whole.args.output_dir, "checkpoint-8")
        torch.manual_seed(99)  # The checkpoint has the random numbers.
        resumed = self.trainer("resumed", resume_from_checkpoint=checkpoint, **options)
        self.assertEqual(resumed.store.step_no, 8)
        resumed.train(resume_from_checkpoint=checkpoint)
        self.assertEqual(losses(resumed), losses(whole))
        self.assert_equal_weights(whole, resumed)

    def test_the_newest_checkpoint(self) -> None:
        options = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
        first = self.trainer("first", max_steps=4, **options)
        first.train()
        folders = sorted(path.name for path in Path(first.args.output_dir).iterdir())
        self.assertEqual(folders, ["checkpoint-4", "cistern-first-rank0"])
        first.store.close(remove=True)
        again = self.trainer("first", max_steps=6, resume_from_checkpoint="True", **options)
        self.assertEqual(again.store.step_no, 4)
        again.train(resume_from_checkpoint=True)
        self.assertEqual(again.store.step_no, 6)
        with self.assertRaisesRegex(ValueError, "no checkpoint in"):
            ct.hf.states_of(True, self.arguments("nothing"))

    def test_a_checkpoint_replaces_that_of_an_earlier_run(self) -> None:
        options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}
        first = self.trainer("first", **options)
        train(first)
        first.store.close(remove=True)
        again = self.trainer("first", seed=7, **options)
        train(again)
        self.assertNotEqual(losses(again), losses(first))
        checkpoint = os.path.join(again.args.output_dir, "checkpoint-2")
        self.assertFalse([name for name in os.listdir(checkpoint) if name.endswith(".new")])
        other = self.trainer("other", resume_from_checkpoint=checkpoint, **options)
        self.assert_equal_weights(again, other)

    def test_of_a_job_that_lives_and_is_further(self) -> None:
        options = {"save_strategy": "steps", "save_steps": 4, "max_steps": 6}
        first = self.trainer("first", **options)
        first.train()
        first.store.close()
        checkpoint = os.path.join(first.args.output_dir, "checkpoint-4")
        options["output_dir"] = os.path.join(self.dir, "other")
        again = self.trainer("first", resume_from_checkpoint=checkpoint, **options)
        with self.assertRaisesRegex(ValueError, "of step 4, job 'first' has done 6 steps"):
            again.train(resume_from_checkpoint=checkpoint)
        with self.assertWarnsRegex(UserWarning, "has done 6 steps, and Trainer begins with step 0"):
            again.train()

    def test_after_the_process_was_killed(self) -> None:
        """Before the first checkpoint, after one, and between a commit and what follows it."""
        undisturbed = self.trainer("undisturbed")
        train(undisturbed)
        for dies_in, call, save_steps in ((2, "training_step", 5), (7, "training_step", 5),
                                          (6, "callback", 6), (12, "callback", 5)):  # fmt: skip
            with self.subTest(dies_in=dies_in, call=call):
                job = f"killed{dies_in}"
                options = {"save_strategy": "steps", "save_steps": save_steps}
                pid = os.fork()
                if pid == 0:
                    self.train_and_die(job, dies_in, call, options)
                self.assertEqual(os.waitpid(pid, 0)[1], signal.SIGKILL)
                torch.manual_seed(99)
                again = self.trainer(job, **options)
                self.assertEqual(again.store.step_no, dies_in)
                has_checkpoint = dies_in > save_steps
                again.train(resume_from_checkpoint=has_checkpoint)
                self.assertEqual(again.state.global_step, 12)
                rest = losses(undisturbed)[dies_in:]
                self.assertEqual(losses(again)[len(losses(again)) - len(rest) :], rest)
                self.assert_equal_weights(again, undisturbed)
                folder = Path(again.args.output_dir, f"cistern-{job}-rank0")
                self.assertEqual({p.name for p in folder.iterdir()}, {"step-11", "step-12"})

    def train_and_die(self, job: str, step: int, call: str, options: dict[str, Any]) -> None:
        """Train in this process, which dies in the step ``step``, or after its commit."""
        try:
            trainer = self.trainer(job, **options)
            plain = trainer.training_step

            def training_step(*args: Any) -> torch.Tensor:
                if trainer.store.step_no == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return plain(*args)

            class Killer(transformers.TrainerCallback):
                def on_optimizer_step(self, *_: Any, **__: Any) -> None:
                    if trainer.store.step_no == step:
                        os.kill(os.getpid(), signal.SIGKILL)

            if call == "callback":
                trainer.add_callback(Killer())
            else:
                trainer.training_step = training_step
            train(trainer)
        finally:
            os._exit(1)

    def test_the_best_model_is_loaded_at_the_end(self) -> None:
        trainer = self.trainer(
            "best",
            max_steps=4,
            save_strategy="steps",
            save_steps=1,
            eval_strategy="steps",
            eval_steps=1,
            load_best_model_at_end=True,
            metric_for_best_model="step",
            greater_is_better=False,
            learning_rate=1e-2,
        )
        trainer.compute_metrics = None
        steps = itertools.count()
        plain = trainer.evaluate

        def evaluate(*args: Any, **kwargs: Any) -> dict[str, float]:
            return {**plain(*args, **kwargs), "eval_step": float(next(steps))}

        trainer.evaluate = evaluate
        trainer.train()
        best = trainer.state.best_model_checkpoint
        self.assertTrue(best.endswith("checkpoint-1"), best)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(best, dtype=torch.bfloat16)
        ours = trainer.model.state_dict()
        for name, value in loaded.state_dict().items():
            self.assertTrue(torch.equal(ours[name], value), name)


class VoidSteps(TrainerCase):
    """A step that becomes void is done again, with the same bits."""

    def masters(self, trainer: Trainer) -> list[torch.Tensor]:
        names = [name for name, _ in trainer.model.named_parameters()]
        return [trainer.store.read(name, State.MASTER) for name in names]

    def train_with_peer(self, job: str, dies_in: int) -> list[torch.Tensor]:
        """Train rank 0 here. Rank 1 is a process, which dies in the step ``dies_in``, if any."""
        peers = [start_peer(job, dies_in)]

        def replace() -> None:
            if status_of(peers[0]) != 0:
                peers.append(start_peer(job, NEVER))

        watcher = threading.Thread(target=replace)
        watcher.start()
        trainer = self.trainer(job, {"rank": 0, "world": 2}, max_steps=4, **CONSTANT)
        trainer.train()
        masters = self.masters(trainer)
        trainer.store.close()
        watcher.join()
        self.assertEqual(status_of(peers[-1]), 0)
        self.assertEqual(len(peers), 1 if dies_in == NEVER else 2)
        return masters

    def test_because_a_rank_was_killed(self) -> None:
        undisturbed = self.train_with_peer("undisturbed", NEVER)
        for mine, theirs in zip(self.train_with_peer("killed", 2), undisturbed, strict=True):
            self.assertTrue(torch.equal(mine, theirs))

    def test_at_any_call_of_the_job(self) -> None:
        undisturbed = self.trainer("undisturbed", max_steps=2)
        train(undisturbed)
        for call, n in (
            ("_begin", 3),
            ("_begin", 12),
            ("_begin", 40),
            ("accumulate", 1),
            ("step", 2),
        ):
            with self.subTest(call=call, n=n):
                disturbed = self.trainer(f"{call}{n}", max_steps=2)
                self.fail_once(disturbed.store, call, n)
                train(disturbed)
                self.assertEqual(losses(disturbed), losses(undisturbed))
                for mine, theirs in zip(
                    self.masters(disturbed), self.masters(undisturbed), strict=True
                ):
                    self.assertTrue(torch.equal(mine, theirs))

    def fail_once(self, store: ct.Store, name: str, n: int) -> None:
        """Let the ``n``-th call of a function raise StepVoid."""
        owner: Any = store._runner.operators if name == "_begin" else store.job
        plain, calls = getattr(owner, name), itertools.count(1)

        def call(*args: Any) -> Any:
            if next(calls) == n:
                raise ct.StepVoid(Status.EPEERDIED, "rank 1 died")
            return plain(*args)

        setattr(owner, name, call)


class Torchrun(TrainerCase):
    def run_ranks(self, job: str, dies_in: str) -> dict[str, list[float]]:
        """Let the agent of torchrun run trainer_rank on two ranks. Return the results of rank 0."""
        self.addCleanup(self.remove, job)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=2,
            run_id=job,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=1,
            monitor_interval=0.1,
            start_method="forkserver",
        )
        launch = elastic_launch(config, trainer_rank.train)
        # Otherwise ranks that are started again find the addresses of those that died.
        own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with kept_handlers(), mock.patch.dict(os.environ, own_store):
            results: dict[str, list[float]] = launch(os.path.join(self.dir, job), dies_in)[0]
        return results

    def test_two_ranks_of_which_one_dies(self) -> None:
        """Losses are those of DistributedDataParallel; dead ranks are started again."""
        plain = self.run_ranks("plain", "plain")
        undisturbed = self.run_ranks("undisturbed", "-1")
        killed = self.run_ranks("killed", "3")
        self.assertEqual(len(undisturbed["losses"]), 6)
        for mine, theirs in zip(undisturbed["losses"], plain["losses"], strict=True):
            self.assertLess(abs(mine - theirs), BOUND * theirs)
        self.assertEqual(killed["losses"], undisturbed["losses"][3:])
        self.assertEqual(killed["weights"], undisturbed["weights"])


class Accelerate(TorchCase):
    """A plain loop with accelerate."""

    def run_loop(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
        torch.manual_seed(5)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        loader = torch.utils.data.DataLoader(
            torch.randint(3, models.VOCABULARY, (24, 12)), batch_size=2, shuffle=True
        )
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
        prepared = accelerator.prepare(model, optimizer, loader, scheduler)
        model, optimizer, loader, scheduler = prepared
        found, norms = [], []
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate(model):
                    loss = models.loss_of(model, batch)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        norms.append(accelerator.clip_grad_norm_(model.parameters(), 1.0))
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                found.append(loss.item())
        return [*found, *map(float, norms)]

    def test_it_has_the_losses_of_plain_torch(self) -> None:
        twin, store = self.twins(models.gpt2, micro_batches=2)
        options = {"lr": 3e-3, "weight_decay": 0.1}
        plain = self.run_loop(twin, MasterAdamW([{"params": list(twin.parameters())}], **options))
        ours = self.run_loop(store.model, store.optimizer(**options))
        self.assertEqual(store.step_no, 12)
        self.assertEqual(len(ours), 24 + 12)
        for i, (mine, theirs) in enumerate(zip(ours, plain, strict=True)):
            self.assertLess(abs(mine - theirs), (BOUND if i < 24 else 0.02) * theirs)


class LoadingStates(TorchCase):
    def test_tied_names_are_as_with_plain_torch(self) -> None:
        twin, store = self.twins(models.qwen2)
        state = models.bf16(models.qwen2).state_dict()
        names = ["model.embed_tokens.weight", "lm_head.weight"]
        for missing in names:
            given = {name: value for name, value in state.items() if name != missing}
            results = [m.load_state_dict(given, strict=False) for m in (twin, store.model)]
            self.assertEqual(results[0].missing_keys, [missing])
            self.assertEqual(*results)
        different = state | {names[1]: state[names[1]] + 1}
        for model in (twin, store.model):
            model.load_state_dict(different)
        for name, value in twin.state_dict().items():
            self.assertTrue(torch.equal(store.model.state_dict()[name], value), name)
        self.compare_steps(twin, store)

    def test_a_load_that_has_failed_is_not_counted(self) -> None:
        _, store = self.twins(models.qwen2)
        state = store.model.state_dict() | {"model.norm.weight": torch.empty(32, device="meta")}
        with self.assertRaises(NotImplementedError):
            store.model.load_state_dict(state)
        with self.assertRaisesRegex(RuntimeError, "Missing key"):
            store.model.load_state_dict({})

    def test_a_state_that_accelerate_saves_has_the_weights(self) -> None:
        _, store = self.twins(models.qwen2)
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(store.model, store.optimizer(lr=1e-3))
        before = store.model.state_dict()
        with tempfile.TemporaryDirectory() as directory:
            accelerator.save_state(directory)
            models.loss_of(model, models.tokens()).backward()
            optimizer.step()
            with self.assertRaisesRegex(ValueError, "state after step 0, .* has done 1.*resume="):
                accelerator.load_state(directory)
        for name, value in store.model.state_dict().items():
            self.assertTrue(torch.equal(before[name], value), name)

    def test_model_load_state_dict_writes_to_the_store(self) -> None:
        twin, store = self.twins(models.qwen2)
        other = models.bf16(models.qwen2)
        result = store.model.load_state_dict(other.state_dict())
        self.assertEqual((result.missing_keys, result.unexpected_keys), ([], []))
        for name, value in other.state_dict().items():
            self.assertTrue(torch.equal(store.state_dict()[name], value), name)
        one = {"model.norm.weight": torch.full((32,), 3.0)}
        result = store.model.load_state_dict(one, strict=False)
        self.assertNotIn("model.norm.weight", result.missing_keys)
        self.assertIn("model.layers.0.mlp.up_proj.weight", result.missing_keys)
        self.assertTrue(torch.equal(store.read("model.norm.weight").float(), *one.values()))
        with self.assertRaisesRegex(RuntimeError, "size mismatch for model.norm.weight"):
            store.model.load_state_dict({"model.norm.weight": torch.ones(3)}, strict=False)
        self.compare_steps(twin, store)
