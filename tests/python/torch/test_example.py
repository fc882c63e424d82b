# SPDX-License-Identifier: Apache-2.0
"""The example that ./quickstart --torch runs."""

import re
import tempfile
from pathlib import Path

import torch.distributed.run
from models import TorchCase
from processes import kept_handlers

EXAMPLE = Path(__file__).parents[3] / "client" / "example_gpt2.py"


class Example(TorchCase):
    def run_example(self, text: Path, steps: int) -> str:
        """Run it as torchrun does, but in processes that need not import torch. Return its output."""
        with tempfile.TemporaryDirectory() as logs, kept_handlers():
            command = ["--standalone", "--nproc-per-node=2", "--run-path"]
            command += ["--start-method=forkserver", f"--log-dir={logs}", "--redirects=1"]
            command += [str(EXAMPLE), str(text), "--job", "example", "--steps", str(steps)]
            torch.distributed.run.main([*command, "--pool", "1500K"])
            (output,) = Path(logs).glob("*/attempt_0/0/stdout.log")
            return output.read_text(encoding="utf-8")

    def test_two_ranks_learn_and_go_on(self) -> None:
        self.addCleanup(self.remove, "example")
        with tempfile.TemporaryDirectory() as made:
            text = Path(made, "text")
            text.write_text("And God said, Let there be light: and there was light. " * 100)
            first, second = self.run_example(text, 6), self.run_example(text, 8)
        losses = [float(loss) for loss in re.findall(r"step \d+: loss (.*)", first)]
        self.assertEqual(len(losses), 6, first)
        self.assertLess(losses[-1], losses[0])
        self.assertLessEqual(int(re.findall(r"pool of (\d+) bytes", first)[0]), 1500 << 10)
        self.assertIn("And God said", first)
        self.assertEqual(re.findall(r"step (\d+):", second), ["7", "8"])
