# SPDX-License-Identifier: Apache-2.0
"""Where a job gets its first states: the model, files, a checkpoint, and its buffers."""

import copy
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import accelerate
import cistern
import cistern.torch as ct
import models
import torch
import transformers
from cistern import CstError, Status
from models import TorchCase, square
from torch import nn


def linear() -> nn.Module:
    return models.bf16(lambda: nn.Linear(4, 4))


class Normed(nn.Module):
    """A model with persistent buffers: the statistics, and their number, which is a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=torch.bfloat16)
        self.norm = nn.BatchNorm1d(4, dtype=torch.bfloat16)
        self.register_buffer("nothing", torch.empty(0))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


class OriginCase(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)

    def trained(self, model: nn.Module, n_steps: int, name: str = "", **options: Any) -> ct.Store:
        store = self.attach(model, name, **options)
        optimizer = store.optimizer(lr=1e-2)
        for _ in range(n_steps):
            square(store.model, models.tokens()).backward()
            optimizer.step()
        return store

    def warnings_of(self, model: nn.Module, name: str = "", **options: Any) -> list[str]:
        """Attach, and return what was warned of."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.attach(model, name, **options).close()
        return [str(warning.message) for warning in caught]


class Kept(OriginCase):
    """The job has weights."""

    def test_a_warning_says_that_those_of_the_model_are_not_used(self) -> None:
        self.assertEqual(self.warnings_of(linear()), [])
        self.trained(linear(), 2).close()
        warned = self.warnings_of(linear())
        self.assertEqual(len(warned), 1)
        self.assertIn(
            f"job '{self.name}' is at step 2: its weights are used, not those of the model",
            warned[0],
        )

    def test_torchrun_and_models_without_weights_are_not_warned(self) -> None:
        self.attach(linear()).close()
        with mock.patch.dict(os.environ, TORCHELASTIC_RESTART_COUNT="0"):
            self.assertEqual(len(self.warnings_of(linear())), 1)
        with mock.patch.dict(os.environ, TORCHELASTIC_RESTART_COUNT="1"):
            self.assertEqual(self.warnings_of(linear()), [])
        self.assertEqual(self.warnings_of(linear().to("meta")), [])

    def test_paths_that_do_not_exist_are_refused(self) -> None:
        self.trained(linear(), 1).close()
        for options in ({"load": "/nothing"}, {"resume": "/nothing"}, {"resume": self.dir}):
            with self.assertRaises(CstError) as raised:
                self.attach(linear(), **options)
            self.assertEqual(raised.exception.status, Status.ENOTFOUND)
        self.assertEqual(self.attach(linear()).step_no, 1)

    def test_a_checkpoint_that_the_job_has_not_reached_is_refused(self) -> None:
        self.trained(linear(), 2, "other").save(self.dir)
        self.trained(linear(), 1).close()
        for path in (self.dir, self.dir / "step-00000002"):
            with self.assertRaisesRegex(ValueError, "at step 1, and the checkpoint .* at step 2"):
                self.attach(linear(), resume=path)
        store = self.attach(linear())
        self.assertEqual(store.step_no, 1)

    def test_a_script_that_resumes_goes_on_with_its_job(self) -> None:
        store = self.trained(linear(), 2)
        store.save(self.dir)
        store.close(remove=True)
        self.trained(linear(), 0, resume=self.dir).close()
        for step in (2, 4):
            warned = self.warnings_of(linear(), resume=self.dir)
            self.assertEqual(len(warned), 1)
            self.assertIn(f"is at step {step}: its weights are used, not those of the", warned[0])
            self.trained(linear(), 2).close()

    def test_a_script_that_loads_goes_on_with_its_job(self) -> None:
        models.bf16(models.gpt2).save_pretrained(self.dir)
        config = transformers.GPT2Config.from_pretrained(self.dir)

        def model() -> nn.Module:
            return models.bf16(lambda: transformers.GPT2LMHeadModel(config))

        self.assertEqual(self.warnings_of(model(), load=self.dir), [])
        warned = self.warnings_of(model(), load=self.dir)
        self.assertEqual(len(warned), 1)
        self.assertIn(f"not those of '{self.dir}'", warned[0])


class Failing(OriginCase):
    """A job is removed if attach fails before the job has weights."""

    def assert_no_job(self) -> None:
        with self.assertRaises(CstError) as raised:
            self.admin.remove_job(self.name)
        self.assertEqual(raised.exception.status, Status.ENOTFOUND)

    def test_of_files(self) -> None:
        (self.dir / "model.safetensors").write_bytes(b"nothing")
        with self.assertRaises(CstError):
            self.attach(linear(), load=self.dir)
        self.assert_no_job()

    def test_of_a_checkpoint(self) -> None:
        self.trained(linear(), 1, "other").save(self.dir)
        with self.assertRaises(cistern.Mismatch):
            self.attach(models.bf16(lambda: nn.Linear(4, 5)), resume=self.dir)
        self.assert_no_job()

    def test_of_a_model_without_weights(self) -> None:
        with self.assertRaisesRegex(TypeError, "'weight' is on the meta device"):
            self.attach(linear().to("meta"))
        self.assert_no_job()

    def test_of_a_pool(self) -> None:
        with self.assertRaises(ct.PoolTooSmall):
            self.attach(models.bf16(models.gpt2), pool=4096)
        self.assert_no_job()

    def test_a_job_with_weights_remains(self) -> None:
        self.trained(linear(), 1).close()
        with self.assertRaises(cistern.Mismatch):
            self.attach(models.bf16(lambda: nn.Linear(4, 5)))
        self.assertEqual(self.attach(linear()).step_no, 1)


class Buffers(OriginCase):
    def assert_equal_buffers(self, ours: nn.Module, theirs: nn.Module) -> None:
        for name, buffer in theirs.named_buffers():
            self.assertTrue(torch.equal(ours.get_buffer(name), buffer), name)

    def test_checkpoints_have_them(self) -> None:
        torch.manual_seed(1)
        twin = Normed()
        store = self.trained(copy.deepcopy(twin).to(models.DEVICE), 2)
        store.save(self.dir, keep=1)
        self.assertFalse(torch.equal(store.model.norm.running_mean, twin.norm.running_mean))
        self.assertEqual(store.model.norm.num_batches_tracked, 2)
        for name, options in (
            ("resumed", {"resume": self.dir}),
            ("named", {"resume": self.dir / "step-00000002"}),
            ("loaded", {"load": self.dir / "step-00000002"}),
        ):
            model = Normed()
            self.assertEqual(self.warnings_of(model, name, **options), [])
            self.assert_equal_buffers(model, store.model)
        square(store.model, models.tokens()).backward()
        store.the_optimizer().step()
        store.save(self.dir, keep=1)  # The file is no obstacle to the removal of the checkpoint.
        self.assertEqual([c.step for c in cistern.checkpoints(self.dir, check=True)], [3])

    def test_those_that_are_not_restored_are_named(self) -> None:
        store = self.trained(Normed(), 2)
        store.job.save(self.dir)  # As "cistern save" does.
        store.close()
        names = "norm.num_batches_tracked, norm.running_mean, norm.running_var, nothing"
        warned = self.warnings_of(Normed(), "resumed", resume=self.dir)
        self.assertEqual(len(warned), 1)
        self.assertRegex(warned[0], f"4 buffers are those of the model.*{names}")
        warned = self.warnings_of(Normed())
        self.assertEqual(len(warned), 2)
        self.assertRegex(warned[1], "process that had its buffers has ended: 4 buffers")

    def test_a_damaged_file_is_refused(self) -> None:
        self.trained(Normed(), 1).save(self.dir)
        file = self.dir / "step-00000001" / "buffers.safetensors"
        whole = file.read_bytes()
        for data in (whole[:-1], whole[:20], b""):
            file.write_bytes(data)
            with self.assertRaisesRegex(ct.CstError, "step-00000001: buffers.safetensors is torn"):
                self.attach(Normed(), "resumed", resume=self.dir)
            with self.assertRaisesRegex(ValueError, "buffers.safetensors' (is no|ends in)"):
                self.attach(Normed(), "loaded", load=file.parent)
        file.write_bytes(whole)
        self.attach(Normed(), "resumed", resume=self.dir)

    def test_one_of_another_shape_is_refused(self) -> None:
        self.trained(Normed(), 1).save(self.dir)
        model = Normed()
        model.nothing = torch.ones(1)
        with self.assertRaisesRegex(ValueError, r"'nothing' has the shape \(1,\), and in .*\(0,\)"):
            self.attach(model, "resumed", resume=self.dir)

    def test_on_the_meta_device_they_are_refused_or_loaded(self) -> None:
        store = self.trained(Normed(), 1)
        store.save(self.dir)
        with torch.device("meta"):
            model = Normed()
        model.scratch = torch.ones(2)
        self.attach(model, "resumed", resume=self.dir)
        self.assert_equal_buffers(model, store.model)
        with torch.device("meta"):
            model = models.llama()
        models.bf16(models.llama).save_pretrained(self.dir)
        with self.assertRaisesRegex(TypeError, r"rotary_emb.inv_freq.*include_buffers=False"):
            self.attach(model, "llama", load=self.dir)
        with accelerate.init_empty_weights(include_buffers=False):
            model = models.llama()
        models.loss_of(self.attach(model, "llama", load=self.dir).model, models.tokens())
