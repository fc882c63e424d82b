# SPDX-License-Identifier: Apache-2.0
"""Models whose weights are those of a job that another process trains."""

import copy
import json
import os
import resource
import signal
import tempfile
import warnings
from pathlib import Path
from typing import Any

import cistern.torch as ct
import models
import peft
import safetensors.torch
import torch
import transformers
from models import TorchCase, tokens
from test_peft import adapted
from torch import nn
from transformers.core_model_loading import revert_weight_conversion


def empty(make: Any) -> nn.Module:
    """Return a model without memory."""
    with torch.device("meta"):
        return make().eval()


def change(job: str) -> None:
    """Try to change weights of ``job``."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ct.reader(job).next()["lm_head.weight"].zero_()


class ReaderCase(TorchCase):
    def read(self, name: str = "") -> ct.Reader:
        reader = ct.reader(name or self.name)
        self.addCleanup(reader.close)
        return reader

    def trained(self, make: Any, n_steps: int = 2, **options: Any) -> ct.Store:
        store = self.attach(models.bf16(make), **options)
        self.train(store, n_steps)
        return store

    def train(self, store: ct.Store, n_steps: int = 1) -> None:
        optimizer = store.optimizer(lr=1e-2)
        for _ in range(n_steps):
            models.loss_of(store.model, tokens()).backward()
            optimizer.step()
        self.update(store)

    def update(self, store: ct.Store) -> None:
        """End the updates of the last step, which run during the next forward pass."""
        with torch.no_grad():
            store.model(tokens())


class Tensors(ReaderCase):
    def test_tensors_are_views_of_the_job(self) -> None:
        store = self.trained(models.llama)
        reader = self.read()
        version = reader.next()
        self.assertEqual(version.step, 2)
        for name, weights in version.state_dict().items():
            self.assertTrue(torch.equal(weights, store.read(name)), name)
        one, again = version["lm_head.weight"], version["lm_head.weight"]
        self.assertEqual(one.data_ptr(), again.data_ptr())
        version.check()

    def test_tensors_keep_the_memory_after_close(self) -> None:
        store = self.trained(models.llama)
        reader = self.read()
        weights = reader.next()["lm_head.weight"]
        reader.close()
        self.assertTrue(torch.equal(weights, store.read("lm_head.weight")))

    def test_a_change_in_place_ends_the_process(self) -> None:
        store = self.attach(models.bf16(models.llama))
        before = store.read("lm_head.weight")
        process = os.fork()
        if process == 0:
            change(self.name)
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), -signal.SIGSEGV)
        self.assertTrue(torch.equal(store.read("lm_head.weight"), before))

    def test_types_are_those_of_the_job(self) -> None:
        self.attach(models.with_fp32_norms(models.gpt2))
        version = self.read().next()
        self.assertEqual(version["transformer.ln_f.weight"].dtype, torch.float32)
        self.assertEqual(version["transformer.wte.weight"].dtype, torch.bfloat16)


class Adapters(ReaderCase):
    """Jobs whose model is one of PEFT, with a base."""

    def setUp(self) -> None:
        super().setUp()
        warnings.simplefilter("ignore", UserWarning)
        plain = models.bf16(models.llama)
        self.plain = copy.deepcopy(plain).eval()
        self.attach(plain.requires_grad_(False), "base").close()
        self.addCleanup(self.remove, "one")  # Before its base.
        self.store = self.attach(adapted("lora", copy.deepcopy(self.plain)), "one", base="base")
        self.train(self.store)
        self.version = self.read("one").next()

    def logits(self, model: nn.Module) -> torch.Tensor:
        torch.manual_seed(5)
        with torch.no_grad():
            logits: torch.Tensor = model.eval()(tokens()).logits
        return logits

    def test_a_model_of_peft_has_the_adapters_and_the_base(self) -> None:
        model = empty(lambda: adapted("lora", models.llama()))
        self.version.assign(model)
        self.assertTrue(torch.equal(self.logits(model), self.logits(self.store.model)))
        self.version.check()

    def test_a_plain_model_has_the_base(self) -> None:
        model = empty(models.llama)
        with self.assertRaisesRegex(ValueError, r"the model lacks .*lora_A"):
            self.version.assign(model)
        self.version.assign(model, strict=False)
        self.assertTrue(torch.equal(self.logits(model), self.logits(self.plain)))

    def test_saved_adapters_are_loaded_by_peft(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.version.save_adapter(folder)
            loaded = peft.PeftModel.from_pretrained(
                copy.deepcopy(self.plain), folder, autocast_adapter_dtype=False
            )
            self.assertTrue(torch.equal(self.logits(loaded), self.logits(self.store.model)))
            files = [Path(folder, "adapter_model.safetensors")]
            self.store.save(folder + "/all")
            files.append(Path(folder, "all/step-00000001/adapter_model.safetensors"))
            ours, theirs = (safetensors.torch.load_file(file) for file in files)
        self.assertEqual(ours.keys(), theirs.keys())
        for name, weights in ours.items():
            self.assertTrue(torch.equal(weights, theirs[name]), name)

    def test_named_weights_are_those_of_the_base(self) -> None:
        named = dict(self.version.named_weights())
        self.assertEqual(list(named), [name for name, _ in self.plain.named_parameters()])
        for name, parameter in self.plain.named_parameters():
            self.assertTrue(torch.equal(named[name], parameter), name)


class Models(ReaderCase):
    def test_logits_are_those_of_plain_torch_after_each_step(self) -> None:
        for make in (models.gpt2, models.llama, models.qwen2, models.gemma, models.mixtral):
            with self.subTest(model=make.__name__):
                store = self.attach(models.bf16(make), make.__name__)
                twin = models.bf16(make).eval()
                reader, model = self.read(make.__name__), empty(make)
                for _ in range(2):
                    self.train(store)
                    models.copy_weights(store, twin)
                    with reader.next() as version:
                        version.assign(model)
                        self.assert_equal_logits(model, twin)
                        version.check()

    def assert_equal_logits(self, one: nn.Module, other: nn.Module) -> None:
        batch = tokens()
        with torch.no_grad():
            self.assertTrue(torch.equal(one(batch).logits, other(batch).logits))

    def test_the_next_version_is_a_swap_of_pointers(self) -> None:
        store = self.trained(models.qwen2)
        reader, model = self.read(), empty(models.qwen2)
        with reader.next() as version:
            version.assign(model)
        parameters = list(model.parameters())
        before = [parameter.data_ptr() for parameter in parameters]
        self.train(store)
        with reader.next() as version:
            version.assign(model)
            self.assertEqual(version.step, 3)
            for old, new in zip(parameters, model.parameters(), strict=True):
                self.assertIs(old, new)
            self.assertIs(model.lm_head.weight, model.model.embed_tokens.weight)
        self.assertEqual(before, [parameter.data_ptr() for parameter in parameters])

    def test_generate_has_the_tokens_of_plain_torch(self) -> None:
        store = self.trained(models.llama)
        twin = models.bf16(models.llama).eval()
        models.copy_weights(store, twin)
        reader = self.read()
        config = transformers.AutoConfig.for_model(**json.loads(reader.model_config))
        model = empty(lambda: transformers.AutoModelForCausalLM.from_config(config))
        prompt = tokens(3)
        with reader.next() as version:
            version.assign(model)
            ours = sampled(model, prompt)
            version.check()
        self.assertTrue(torch.equal(ours, sampled(twin, prompt)))

    def test_other_models_are_refused(self) -> None:
        store = self.attach(models.bf16(models.llama))
        version = self.read().next()
        more = empty(lambda: models.llama(num_hidden_layers=4))
        with self.assertRaisesRegex(ValueError, r"the job lacks model\.layers\.3\..* and 4 more"):
            version.assign(more)
        self.assertTrue(all(parameter.is_meta for parameter in more.parameters()))
        fewer = empty(lambda: models.llama(num_hidden_layers=2))
        with self.assertRaisesRegex(ValueError, r"the model lacks model\.layers\.2\..* and 4 more"):
            version.assign(fewer)
        version.assign(fewer, strict=False)
        with self.assertRaisesRegex(ValueError, "'model.embed_tokens.weight' is in a store"):
            version.assign(store.model)
        wide = empty(lambda: models.llama(vocab_size=103))
        with self.assertRaisesRegex(
            ValueError, r"'lm_head.weight' is \(101, 32\), here \(103, 32\)"
        ):
            version.assign(wide)

    def test_buffers_that_nobody_has_are_refused(self) -> None:
        def normed() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

        plain = normed()
        self.attach(copy.deepcopy(plain))
        version = self.read().next()
        with torch.device("meta"):
            model = normed()
        with self.assertRaisesRegex(
            ValueError, r"no values: 1\.running_mean, .*assign\(buffers=\)"
        ):
            version.assign(model)
        version.assign(model, buffers=dict(plain.named_buffers()))
        x = torch.ones(2, 4)
        self.assertTrue(torch.equal(model.eval()(x), plain.eval()(x)))

    def test_weights_are_assigned_by_load_state_dict(self) -> None:
        self.attach(models.bf16(models.llama))
        model = empty(models.llama)
        version = self.read().next()
        model.load_state_dict(version.state_dict(), assign=True)
        self.assertEqual(model.lm_head.weight.data_ptr(), version["lm_head.weight"].data_ptr())

    def test_named_weights_are_those_of_save_pretrained(self) -> None:
        for make in (models.gpt2, models.llama, models.qwen2, models.mixtral):
            with self.subTest(model=make.__name__), tempfile.TemporaryDirectory() as folder:
                store = self.attach(models.bf16(make), make.__name__)
                store.model.save_pretrained(folder)
                files = safetensors.torch.load_file(Path(folder, "model.safetensors"))
                named = dict(self.read(make.__name__).next().named_weights())
                if make is models.mixtral:  # Its experts have other names in files.
                    named = revert_weight_conversion(empty(make), named)
                self.assertEqual(named.keys(), files.keys())
                for name, weights in named.items():
                    self.assertTrue(torch.equal(weights, files[name]), name)


def sampled(model: nn.Module, prompt: torch.Tensor) -> torch.Tensor:
    """Return tokens that the model samples with a seed."""
    torch.manual_seed(3)
    out: torch.Tensor = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=transformers.GenerationConfig(
            max_new_tokens=8, do_sample=True, pad_token_id=0, eos_token_id=None
        ),
    )
    return out
