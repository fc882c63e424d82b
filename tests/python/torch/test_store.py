# SPDX-License-Identifier: Apache-2.0
"""What a store does besides steps: memory that is not there, states, files."""

import copy
import gc
import io
import pickle
import re
import tempfile
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cistern.torch as ct
import models
import torch
import transformers
from cistern import State
from cistern.torch.sizes import in_bytes
from cistern.torch.units import find_units
from models import TorchCase, loss_of, square, tokens
from torch import nn


class Types(TorchCase):
    """Parameters in fp32, alone and beside others in bf16."""

    def attach_silently(self, model: nn.Module) -> ct.Store:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return self.attach(model)

    def test_fp32_parameters_stay_fp32(self) -> None:
        model = nn.Linear(4, 4)
        weight = model.weight.detach().clone()
        store = self.attach_silently(model)
        self.assertEqual(store.read("weight").dtype, torch.float32)
        self.assertTrue(torch.equal(store.read("weight"), weight))
        self.assertTrue(torch.equal(store.read("weight", State.MASTER), weight))
        self.assertIn('"dtype": "fp32"', store.describe())
        self.assertIs(model.to(torch.float32), model)
        with self.assertRaisesRegex(TypeError, "are torch.float32 and cannot become"):
            model.to(torch.bfloat16)
        store.write("weight", weight + 0.001)
        self.assertTrue(torch.equal(store.read("weight"), weight + 0.001))

    def test_gradients_are_those_of_torch(self) -> None:
        torch.manual_seed(1)
        model = models.gpt2()
        twin = copy.deepcopy(model)
        self.compare_steps(twin, self.attach_silently(model))

    def test_norms_in_fp32_beside_bf16(self) -> None:
        torch.manual_seed(1)
        model = models.with_fp32_norms(models.gpt2)
        twin = copy.deepcopy(model)
        store = self.attach_silently(model)
        self.compare_steps(twin, store)
        self.assertEqual(store.read("transformer.ln_f.weight").dtype, torch.float32)
        self.assertEqual(store.read("transformer.wte.weight").dtype, torch.bfloat16)


class Stale(TorchCase):
    """Weights are used outside of their modules."""

    def test_every_use_raises_and_names_the_parameter(self) -> None:
        model = models.bf16(lambda: nn.Sequential(nn.Linear(4, 4)))
        store = self.attach(model)
        weight = model[0].weight
        x = torch.ones(1, 4, dtype=torch.bfloat16)
        uses: dict[str, Callable[[], Any]] = {
            "add": lambda: weight + 1,
            "matmul": lambda: x @ weight.t(),
            "view": lambda: weight.view(-1).sum(),
            "data": lambda: weight.data.add(1),
            "data_ptr": lambda: weight.data_ptr(),
            "repr": lambda: repr(weight),
            "half": lambda: weight.half(),
            "clone": lambda: weight.detach().clone(),
            "deepcopy": lambda: copy.deepcopy(weight),
            "pickle": lambda: pickle.dumps(weight),
            "sum of all": lambda: sum(p.sum() for p in model.parameters()),
            "in place": lambda: nn.init.zeros_(weight),
            "a module's state_dict": lambda: model[0].state_dict()["weight"].clone(),
        }
        for _ in range(2):
            for name, use in uses.items():
                with (
                    self.subTest(name),
                    self.assertRaisesRegex(RuntimeError, "cistern: parameter '0.weight'"),
                ):
                    use()
            with self.assertRaisesRegex(TypeError, "BFloat16"):  # numpy has no such type.
                weight.detach().numpy()
            model(x)
        self.assertEqual((weight.shape, weight.dtype), ((4, 4), torch.bfloat16))
        self.assertTrue(torch.equal(model.state_dict()["0.weight"].clone(), store.read("0.weight")))

    def test_a_copy_of_the_model_is_refused_with_what_to_do(self) -> None:
        for units in ([], [""]):
            store = self.attach(models.bf16(lambda: nn.Sequential(nn.Linear(4, 4))), units=units)
            for use in (
                copy.copy,
                copy.deepcopy,
                pickle.dumps,
                lambda m: torch.save(m, io.BytesIO()),
            ):
                for module in (store.model, store.model[0]):
                    with self.assertRaisesRegex(TypeError, r"model\.state_dict\(\).*Store\.save"):
                        use(module)
            with self.assertRaisesRegex(TypeError, "a store cannot be copied"):
                copy.deepcopy(store)
            file = io.BytesIO()
            torch.save(store.model.state_dict(), file)
            file.seek(0)
            for name, value in torch.load(file).items():
                self.assertTrue(torch.equal(value, store.read(name)))
            store.close(remove=True)

    def test_views_of_the_time_before_follow_or_raise(self) -> None:
        """A module keeps a view of its weight. Its gradients are those of plain torch."""

        class Keeping(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4, dtype=torch.bfloat16)
                self.view = self.linear.weight.t()
                self.detached = self.linear.weight.detach()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.linear(x) + x @ self.view + x @ self.detached

        torch.manual_seed(2)
        twin = Keeping()
        torch.manual_seed(2)
        store = self.attach(Keeping(), units=[""])
        self.compare_steps(twin, store, loss=square)
        for view in (store.model.view, store.model.detached):
            with self.assertRaisesRegex(RuntimeError, "cistern: parameter 'linear.weight'"):
                view.sum()

    def test_views_of_another_type_raise_and_memory_of_numpy_stays(self) -> None:
        model = nn.Linear(4, 4)
        model.weight.data = model.weight.data.half()
        view = model.weight.t()
        bias = model.bias.detach().numpy()
        copied = bias.copy()
        with self.assertWarns(UserWarning):
            self.attach(model)
        with self.assertRaisesRegex(RuntimeError, "cistern: parameter 'weight'"):
            view.sum()
        self.assertEqual(bias.tolist(), copied.tolist())

    def test_a_parameter_with_other_memory_is_named(self) -> None:
        twin, store = self.twins(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        weight, before = store.model[1].weight, store.model[1].weight.data
        optimizer = store.optimizer(lr=0.1)
        weight.data = torch.ones(4, 4, dtype=torch.bfloat16)
        for grad in (True, False):
            with (
                torch.set_grad_enabled(grad),
                self.assertRaisesRegex(RuntimeError, "'1.weight' was given other memory"),
            ):
                square(store.model, tokens())
        weight.data = before
        loss = square(store.model, tokens())
        weight.data = torch.ones(4, 4, dtype=torch.bfloat16)
        with self.assertRaisesRegex(RuntimeError, "'1.weight' was given other memory"):
            loss.backward()
        weight.data = before
        self.compare_steps(twin, store, loss=square)
        square(store.model, tokens()).backward()
        weight.data = before.t()  # The same memory.
        with self.assertRaisesRegex(RuntimeError, "'1.weight' was given other memory"):
            optimizer.step()

    def test_a_use_by_another_module_is_named(self) -> None:
        class Thief(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.owner = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.owner(x) @ self.owner.weight

        x = torch.ones(1, 4, dtype=torch.bfloat16)
        store = self.attach(models.bf16(Thief))
        with self.assertRaisesRegex(RuntimeError, "cistern: parameter 'owner.weight'"):
            store.model(x)
        store.close(remove=True)
        whole = self.attach(models.bf16(Thief), units=[""])
        whole.model(x).sum().backward()

    def test_a_weight_changed_in_place_is_named(self) -> None:
        class Writer(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                with torch.no_grad():
                    self.weight.clamp_(-1, 1)
                return super().forward(x)

        store = self.attach(models.bf16(lambda: Writer(4, 4)))
        with self.assertRaisesRegex(RuntimeError, "'weight' was changed in place"):
            store.model(torch.ones(1, 4, dtype=torch.bfloat16))

    def test_gathered_weights_are_readable(self) -> None:
        store = self.attach(models.bf16(lambda: nn.Linear(4, 4)))
        weight = store.model.weight
        x = torch.ones(1, 4, dtype=torch.bfloat16)
        with store.gather("weight"):
            self.assertTrue(torch.equal(weight, store.read("weight")))
            store.model(x)
            self.assertTrue(torch.equal(weight, store.read("weight")))
        with self.assertRaises(RuntimeError):
            weight.sum()

    def test_names_that_are_given_twice(self) -> None:
        store = self.attach(models.bf16(lambda: nn.Linear(4, 4)))
        weight = store.model.weight
        with store.gather("weight", "bias", "weight"):
            self.assertTrue(torch.equal(weight, store.read("weight")))
        with store.changing("weight", "weight"), torch.no_grad():
            weight.fill_(3)
        self.assertTrue(bool((store.read("weight") == 3).all()))
        with self.assertRaisesRegex(RuntimeError, "outside of its module"):
            weight.sum()

    def test_a_store_in_words(self) -> None:
        twin, store = self.twins(models.gpt2)
        self.assertIn("nothing was fetched yet", repr(store))
        self.compare_steps(twin, store, n_steps=2)
        n_params = sum(p.numel() for p in twin.parameters())
        for words in (
            f"'{self.name}', rank 0 of 1: step 2,",
            f"{n_params:,} parameters",
            " % hits",
        ):
            self.assertIn(words, repr(store))
        store.close()
        self.assertEqual(repr(store), f"store of job '{self.name}'")

    def test_reading_does_not_depend_on_the_default_device(self) -> None:
        store = self.attach(models.bf16(lambda: nn.Linear(4, 4)))
        weight = store.read("weight")
        with torch.device("meta"):
            self.assertTrue(torch.equal(store.read("weight"), weight))


class Models(TorchCase):
    """What can be in a store."""

    def test_units_are_found(self) -> None:
        model = models.gpt2()
        found = list(find_units(model))
        blocks = [f"transformer.h.{i}" for i in range(3)]
        self.assertEqual(
            found,
            ["transformer.wte", "transformer.wpe", *blocks, "transformer.ln_f", "lm_head"],
        )
        self.assertEqual(list(find_units(model, ["transformer"])), ["transformer", "lm_head"])
        inside = find_units(model, ["transformer.h.1.mlp"])
        self.assertIn("transformer.h.1.mlp", inside)
        self.assertIn("transformer.h.1.attn.c_attn", inside)
        with self.assertRaisesRegex(ValueError, "no module nothing"):
            find_units(model, ["nothing"])

    def test_fp16_parameters_become_bf16_and_their_masters_are_exact(self) -> None:
        model = nn.Linear(4, 4).half()
        master = model.weight.detach().float()
        with self.assertWarnsRegex(UserWarning, "2 parameters become bf16: bias, weight"):
            store = self.attach(model)
        self.assertTrue(torch.equal(store.read("weight", State.MASTER), master))
        self.assertTrue(torch.equal(store.read("weight"), master.to(torch.bfloat16)))

    def test_what_cannot_be_in_a_store_is_refused(self) -> None:
        model = nn.Linear(4, 4)
        model.count = nn.Parameter(torch.ones(1, dtype=torch.int32), requires_grad=False)
        with self.assertRaisesRegex(TypeError, "'count' is torch.int32"):
            self.attach(model)
        model = nn.Linear(4, 4)
        model.first = nn.Parameter(model.weight.data[0])
        with self.assertRaisesRegex(TypeError, "'first' and 'weight' share memory|share memory"):
            self.attach(model)

    def test_scalars_and_empty_parameters(self) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.tensor(2.0))
                self.nothing = nn.Parameter(torch.empty(0))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.scale

        twin, store = self.twins(Scaled)
        self.assertEqual(store.read("scale").shape, ())
        optimizer = store.optimizer(lr=0.1)
        square(store.model, tokens()).backward()
        square(twin, tokens()).backward()
        optimizer.step()
        self.assertTrue(torch.equal(store.read("scale", State.GRAD), twin.scale.grad))

    def test_a_model_stays_where_it_is(self) -> None:
        twin, store = self.twins(models.gpt2)
        for arguments in (("cpu",), ("cpu:0",), (torch.bfloat16,), ("cpu", torch.bfloat16)):
            self.assertIs(store.model.to(*arguments), store.model)
        with self.assertRaisesRegex(TypeError, "the model is on cpu"):
            store.model.to("meta")
        with self.assertRaisesRegex(TypeError, "cannot become torch.float32"):
            store.model.to(torch.float32)
        with self.assertRaisesRegex(TypeError, "cannot become torch.float64"):
            store.model.double()
        self.assertIs(store.model.bfloat16(), store.model)
        self.compare_steps(twin, store)

    def test_sizes_of_pools(self) -> None:
        for size, expected in (
            (7, 7),
            ("7", 7),
            ("6G", 6 << 30),
            ("1.5GiB", 3 << 29),
            ("2kb", 2048),
            (6e9, 6000000000),
        ):
            self.assertEqual(in_bytes("pool", size), expected)
        for wrong in ("many", "6X", "", "G", "-5M", -1, 2**70, float("nan")):
            with self.assertRaisesRegex(ValueError, f"cistern: pool is {wrong!r}: a size"):
                in_bytes("pool", wrong)

    def test_wrong_arguments_are_named(self) -> None:
        model = models.bf16(lambda: nn.Linear(4, 4))
        store = self.attach(model)
        with self.assertRaisesRegex(ValueError, "'weight' is in a store already"):
            self.attach(model, "second")
        with self.assertRaisesRegex(TypeError, "'bias' is written from a tensor"):
            store.write("bias", [0.0] * 4)
        with self.assertRaisesRegex(TypeError, "the state is 'grad'"):
            store.read("weight", "grad")
        named = nn.ModuleDict({"größe": nn.Linear(4, 4)})
        with self.assertRaisesRegex(ValueError, "parameter 'größe.weight'"):
            self.attach(named, "second")

    def test_a_pool_that_is_too_small(self) -> None:
        with self.assertRaises(ct.PoolTooSmall) as caught:
            self.attach(models.bf16(models.gpt2), pool=4096)
        words = r"\((\d+) bytes\), \d+% of the job's weights, is enough\. Give attach a larger pool"
        found = re.search(words, str(caught.exception))
        self.assertIsNotNone(found, str(caught.exception))
        self.attach(models.bf16(models.gpt2), pool=int(found[1]))


class Inference(TorchCase):
    def test_eval_no_grad_and_inference_mode(self) -> None:
        twin, store = self.twins(models.llama)
        batch = tokens()
        for model in (twin, store.model):
            model.eval()
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                self.assertTrue(torch.equal(store.model(batch).logits, twin(batch).logits))

    def test_generate(self) -> None:
        twin, store = self.twins(models.gpt2)
        batch = tokens(1)
        outputs = []
        for model in (twin, store.model):
            model.eval()
            outputs.append(model.generate(batch, max_new_tokens=8, do_sample=False))
        self.assertTrue(torch.equal(*outputs))

    def test_between_steps_of_training(self) -> None:
        twin, store = self.twins(models.gpt2)
        self.compare_steps(twin, store, n_steps=1)
        with torch.no_grad():
            loss_of(store.model, tokens())
        loss_of(store.model, tokens())  # A graph that nobody uses.
        self.compare_steps(twin, store, n_steps=2)

    def test_many_steps_keep_no_more_storages_than_blocks(self) -> None:
        pool = 3 * self.least_pool(models.gpt2, 4096)
        store = self.attach(models.bf16(models.gpt2), pool=pool, chunk_elems=4096)
        optimizer, before = store.optimizer(lr=1e-3), _n_storages()
        for _ in range(200):
            loss_of(store.model, tokens()).backward()
            optimizer.step()
        n_blocks = sum(c.n_blocks for c in store.plan.classes)
        n_tensors = len(list(store.model.parameters()))
        self.assertLess(_n_storages() - before, 2 * n_tensors * n_blocks)


def _n_storages() -> int:
    gc.collect()
    return sum(isinstance(o, torch.UntypedStorage) for o in gc.get_objects())


class States(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name

    def test_a_process_that_attaches_again_goes_on(self) -> None:
        twin, store = self.twins(models.gpt2)
        self.compare_steps(twin, store)
        store.close()
        again = self.attach(models.bf16(models.gpt2))
        self.assertEqual(again.step_no, 3)
        self.compare_steps(twin, again)

    def test_a_closed_store_is_freed_with_its_model(self) -> None:
        store = self.attach(models.bf16(models.gpt2))
        optimizer = store.optimizer(lr=1e-2)
        loss_of(store.model, tokens()).backward()
        optimizer.step()
        store.close()
        model, gone = weakref.ref(store.model), weakref.ref(store)
        del store, optimizer
        gc.collect()
        self.assertEqual((model(), gone()), (None, None))

    def test_state_dict_has_the_weights_and_ties(self) -> None:
        twin, store = self.twins(models.qwen2)
        state = store.model.state_dict()
        plain = twin.state_dict()
        self.assertEqual(list(state), list(plain))
        for name, value in plain.items():
            self.assertTrue(torch.equal(state[name], value), name)
        self.assertIs(state["lm_head.weight"], state["model.embed_tokens.weight"])

    def test_load_state_dict(self) -> None:
        _, store = self.twins(models.gpt2)
        other = models.bf16(models.gpt2)
        store.load_state_dict(other.state_dict())
        for name, value in other.state_dict().items():
            self.assertTrue(torch.equal(store.state_dict()[name], value), name)
        with self.assertRaisesRegex(RuntimeError, "Missing key"):
            store.load_state_dict({})

    def test_save_pretrained_and_load(self) -> None:
        twin, store = self.twins(models.qwen2)
        self.compare_steps(twin, store)
        store.model.save_pretrained(self.dir)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(self.dir, dtype=torch.bfloat16)
        for name, value in store.state_dict().items():
            self.assertTrue(torch.equal(loaded.state_dict()[name], value), name)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                loaded.config, dtype=torch.bfloat16
            )
        model.tie_weights()
        model.model.rotary_emb = copy.deepcopy(loaded.model.rotary_emb)
        streamed = self.attach(model, "streamed", load=self.dir)
        for name, value in store.state_dict().items():
            self.assertTrue(torch.equal(streamed.state_dict()[name], value), name)
        batch = tokens()
        with torch.no_grad():
            ours = streamed.model.eval()(batch).logits
            self.assertTrue(torch.equal(ours, loaded.eval()(batch).logits))

    def test_a_checkpoint_is_resumed_with_the_same_bits(self) -> None:
        _, store = self.twins(models.gpt2)
        batches = [tokens() for _ in range(4)]

        def train(store: ct.Store, batches: list[torch.Tensor]) -> None:
            optimizer = store.optimizer(lr=1e-2)
            for batch in batches:
                torch.manual_seed(store.step_no)
                loss_of(store.model, batch).backward()
                optimizer.step()

        train(store, batches[:2])
        saved = store.save(self.dir)
        self.assertEqual(saved.step, 2)
        train(store, batches[2:])
        other = self.attach(models.bf16(models.gpt2), "other", resume=self.dir)
        self.assertEqual(other.step_no, 2)
        train(other, batches[2:])
        for name, value in store.state_dict().items():
            self.assertTrue(torch.equal(other.state_dict()[name], value), name)
        folder = Path(self.dir, "step-00000002")
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self.assertEqual(loaded.config.n_layer, 3)

    def test_a_model_without_memory_needs_a_path(self) -> None:
        with torch.device("meta"):
            model = nn.Linear(4, 4, dtype=torch.bfloat16)
        with self.assertRaisesRegex(TypeError, "meta device"):
            self.attach(model)
