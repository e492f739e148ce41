"""The stand-in for torch's compiler: not loaded where nothing compiles, and as ever where something does."""

from __future__ import annotations

import subprocess
import sys


def printed(script: str) -> list[str]:
    head = "import sys\nfrom leanify.upstream import lazy_dynamo\nlazy_dynamo.install()\nimport torch\n"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", head + script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_redesign_loads_no_compiler() -> None:
    script = "import leanify; leanify.redesign('vit_tiny_patch16_224', depth=8)\n"
    script += "print('torch._dynamo.eval_frame' in sys.modules, 'timm' in sys.modules)"
    assert printed(script) == ["False", "True"]


def test_compiling_loads_the_real_one_and_undoes_the_stand_in() -> None:
    """A function that torch keeps out of graphs is kept out although it ran before the compiler was there."""
    script = """
import torch._compile
@torch._compile._disable_dynamo
def outside(x): return x.sin() if not torch.compiler.is_compiling() else x * 0
print(float(outside(torch.zeros(1))))
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward
f = torch.compile(lambda x: outside(x + 1) + 1, backend=backend)
print(torch.equal(f(torch.zeros(3)), torch.ones(3).sin() + 1), len(graphs))
import torch._dynamo.config as config
print(config is torch._dynamo.config, config is sys.modules["torch._dynamo.config"])
"""
    assert printed(script) == ["0.0", "True", "2", "True", "True"]
