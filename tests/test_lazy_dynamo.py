"""The stand-in for torch's compiler: not loaded where nothing compiles, and as ever where something does."""

from __future__ import annotations

import subprocess
import sys

import pytest


def printed(script: str) -> list[str]:
    head = "import sys\nfrom leanify.upstream import lazy_dynamo\nlazy_dynamo.install()\nimport torch\n"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", head + script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(("name", "library"), [("vit_tiny_patch16_224", "timm"), ("hf/gpt2", "transformers")])
def test_a_redesign_loads_no_compiler(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANIFY_PRICES", "off")  # else nothing is imported at all
    script = f"import leanify; leanify.redesign({name!r}, depth=8)\n"
    script += f"print('torch._dynamo.eval_frame' in sys.modules, {library!r} in sys.modules)"
    assert printed(script) == ["False", "True"]


def test_marked_functions_stay_marked() -> None:
    """transformers marks functions for the compiler and takes a file of its package while it is not there."""
    script = """
import torch._dynamo
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex as early
@torch._dynamo.allow_in_graph
def inside(x):
    torch._dynamo.graph_break()  # as code that cannot be traced does
    return x.relu()
@torch._dynamo.assume_constant_result
def constant(): return 3
@torch.compiler.disable(recursive=False)
def skipped(x): return x if not torch.compiler.is_compiling() else x * 0
print("torch._dynamo.eval_frame" in sys.modules)
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward
print(torch.compile(lambda x: skipped(x + 1), backend=backend)(torch.zeros(2)).tolist() == [1.0, 1.0])
graphs.clear()
f = torch.compile(lambda x: inside(x) + constant(), backend=backend, fullgraph=True)
print(f(torch.ones(2)).tolist() == [4.0, 4.0], len(graphs))
print(early is torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex)
"""
    assert printed(script) == ["False", "True", "True", "1", "True"]


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
