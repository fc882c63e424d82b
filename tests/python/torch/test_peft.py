# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT."""

import copy
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import accelerate
import cistern
import cistern.torch as ct
import models
import peft
import torch
from cistern import State
from models import TorchCase, tokens
from test_hf import BOUND, TrainerCase, losses, train
from torch import nn

KINDS: dict[str, dict[str, Any]] = {
    "lora": {"target_modules": ["q_proj", "down_proj"]},
    "all": {"target_modules": "all-linear", "use_rslora": True, "bias": "lora_only"},
    "dora": {"target_modules": ["v_proj"], "use_dora": True},
    "head": {"target_modules": ["o_proj"], "modules_to_save": ["lm_head"]},
}


def adapted(kind: str, model: nn.Module | None = None) -> nn.Module:
    """Return a tiny Llama with adapters that are not zero."""
    config = peft.LoraConfig(r=4, task_type="CAUSAL_LM", **KINDS[kind])
    base = models.bf16(models.llama) if model is None else model
    with_adapters = peft.get_peft_model(base, config, autocast_adapter_dtype=False)
    for name, parameter in with_adapters.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return with_adapters.train()


class PeftCase(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        warnings.simplefilter("ignore", UserWarning)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)

    def train(self, store: ct.Store, n_steps: int = 2) -> None:
        optimizer = store.optimizer(lr=1e-2)
        for _ in range(n_steps):
            models.loss_of(store.model, tokens()).backward()
            optimizer.step()

    def assert_equal_logits(self, one: nn.Module, other: nn.Module) -> None:
        batch = tokens()
        with torch.no_grad():
            logits = [model.eval()(batch).logits for model in (one, other)]
        self.assertTrue(torch.equal(*logits))


class Adapters(PeftCase):
    def test_gradients_have_the_bits_of_plain_torch(self) -> None:
        for kind in KINDS:
            with self.subTest(kind=kind):
                model = adapted(kind)
                twin = copy.deepcopy(model)
                store = self.attach(model, kind, chunk_elems=4096)
                self.compare_steps(twin, store)
                self.assert_equal_logits(twin, copy_of(store, twin))

    def test_save_pretrained_is_loaded_by_peft(self) -> None:
        for kind in KINDS:
            with self.subTest(kind=kind):
                base = models.bf16(models.llama)
                store = self.attach(adapted(kind, copy.deepcopy(base)), kind)
                self.train(store)
                folder = self.dir / kind
                store.model.save_pretrained(folder)
                names = {path.name for path in folder.iterdir()}
                self.assertIn("adapter_model.safetensors", names)
                loaded = peft.PeftModel.from_pretrained(base, folder, autocast_adapter_dtype=False)
                self.assert_equal_logits(loaded, store.model)

    def test_a_checkpoint_of_the_daemon_is_loaded_by_peft(self) -> None:
        for kind in KINDS:
            with self.subTest(kind=kind):
                base = models.bf16(models.llama)
                store = self.attach(adapted(kind, copy.deepcopy(base)), kind)
                self.train(store)
                store.save(self.dir / kind)
                folder = self.dir / kind / "step-00000002"
                loaded = peft.PeftModel.from_pretrained(
                    copy.deepcopy(base), folder, autocast_adapter_dtype=False
                )
                self.assert_equal_logits(loaded, store.model)
                other = self.attach(adapted(kind, base), kind + "2", resume=self.dir / kind)
                self.assertEqual(other.step_no, 2)
                self.assert_equal_logits(other.model, store.model)

    def test_adapters_are_loaded_into_the_store(self) -> None:
        base = models.bf16(models.llama)
        plain = adapted("lora", copy.deepcopy(base))
        plain.save_pretrained(self.dir)
        store = self.attach(adapted("lora", base))
        store.model.load_adapter(
            self.dir, "default", is_trainable=True, autocast_adapter_dtype=False
        )
        self.assert_equal_logits(plain, store.model)
        self.train(store)

    def test_merge_is_refused(self) -> None:
        store = self.attach(adapted("lora"))
        for name in ("merge_and_unload", "merge_adapter", "unload"):
            with self.assertRaisesRegex(TypeError, r"in a store: .*model\.save_pretrained\(dir\)"):
                getattr(store.model, name)()


class Base(PeftCase):
    """Several jobs with adapters use the frozen weights of one job."""

    def base(self, model: nn.Module, **options: Any) -> ct.Store:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return self.attach(model, "base", **options)

    def tearDown(self) -> None:
        for job in ("one", "two"):  # Before their base, which cannot be removed as long.
            self.remove(job)

    def test_gradients_have_the_bits_of_plain_torch(self) -> None:
        plain = models.bf16(models.llama)
        base = self.base(copy.deepcopy(plain))
        before = base.state_dict()
        base.close()
        for job in ("one", "two"):
            model = adapted("lora", copy.deepcopy(plain))
            twin = copy.deepcopy(model)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if not parameter.requires_grad:
                        parameter.zero_()  # The weights are those of the base.
            store = self.attach(model, job, base="base")
            self.compare_steps(twin, store)
            store.close()
        again = self.base(copy.deepcopy(plain))
        for name, value in again.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)

    def test_a_job_has_the_memory_of_its_adapters_alone(self) -> None:
        plain = models.bf16(models.llama)
        self.base(copy.deepcopy(plain)).close()
        own = self.attach(adapted("lora", copy.deepcopy(plain)), "own")
        shares = self.attach(adapted("lora", plain), "one", base="base")
        n = sum(p.numel() for p in shares.model.parameters() if not p.requires_grad)
        self.assertLessEqual(shares.plan.arena_bytes, own.plan.arena_bytes - 2 * n)

    def test_the_frozen_parameters_can_be_on_the_meta_device(self) -> None:
        plain = models.bf16(models.llama)
        self.base(copy.deepcopy(plain)).close()
        twin = adapted("lora", copy.deepcopy(plain))
        with accelerate.init_empty_weights(include_buffers=False):
            model = models.llama()
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16()
        model = adapted("lora", model)  # This puts the adapters on the meta device, too.
        for name, module in model.named_modules():
            if "lora_" in name and isinstance(module, nn.Linear):
                module.to_empty(device="cpu")
                module.weight.data.copy_(twin.get_submodule(name).weight)
        self.compare_steps(twin, self.attach(model, "one", base="base"))

    def test_another_model_is_refused(self) -> None:
        self.base(models.bf16(lambda: models.llama(num_hidden_layers=2))).close()
        with self.assertRaises(cistern.CstError) as raised:
            self.attach(adapted("lora"), "one", base="base")
        self.assertIn("model.layers.2", str(raised.exception))

    def test_model_files_are_loaded_without_the_adapters(self) -> None:
        plain = models.bf16(models.llama)
        plain.save_pretrained(self.dir)
        twin = adapted("lora", copy.deepcopy(plain))
        model = copy.deepcopy(twin)
        with torch.no_grad():
            for parameter in model.parameters():
                if not parameter.requires_grad:
                    parameter.zero_()
        self.compare_steps(twin, self.attach(model, load=self.dir))


class Training(TrainerCase):
    def setUp(self) -> None:
        super().setUp()
        warnings.simplefilter("ignore", UserWarning)
        self.model = adapted("lora")

    def test_trainer_goes_on_in_the_middle_of_an_epoch(self) -> None:
        options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        whole = self.trainer("whole", **options)
        train(whole)
        checkpoint = os.path.join(whole.args.output_dir, "checkpoint-2")
        loaded = peft.PeftModel.from_pretrained(models.bf16(models.llama), checkpoint)
        self.assertEqual(loaded.active_peft_config.r, 4)
        resumed = self.trainer("resumed", resume_from_checkpoint=checkpoint, **options)
        resumed.train(resume_from_checkpoint=checkpoint)
        self.assertEqual(losses(resumed), losses(whole))
        plain = self.plain_trainer(max_steps=4)
        train(plain)
        for mine, theirs in zip(losses(whole), losses(plain), strict=True):
            self.assertLess(abs(mine - theirs), BOUND * theirs)


def copy_of(store: ct.Store, twin: nn.Module) -> nn.Module:
    """Return the model of the store, after the twin got its weights."""
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(store.read(name, State.WEIGHT))
    return store.model
