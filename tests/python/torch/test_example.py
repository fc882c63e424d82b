# SPDX-License-Identifier: Apache-2.0
"""The example that ./quickstart --torch runs."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from models import TorchCase

EXAMPLE = Path(__file__).parents[3] / "client" / "example_gpt2.py"


class Example(TorchCase):
    def run_example(self, text: Path, steps: int) -> str:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", str(EXAMPLE), str(text)]
        command += ["--job", "example", "--steps", str(steps), "--pool", "1500K"]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C.UTF-8"}
        )  # fmt: skip
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

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
