"""Write a model for another loader (transformers, timm, torch.export, onnxruntime), and check it by running it there.

For hf and timm a process that cannot import leanify loads the directory and runs it. Where the outputs
differ, nothing is left behind.
"""

from __future__ import annotations

import copy
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leanify.design.prices.counting import Positional, call
from leanify.errors import DirectoryError, LeanifyError, SourceError, UnsupportedModel
from leanify.exporting import load_alone, modelling
from leanify.runs import writing
from leanify.runs.new_directory import new_directory
from leanify.sources import find, lean_directory, side_files
from leanify.sources.describe import describe
from leanify.sources.timm_hooks import config_of as timm_config
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import first_line
from leanify.upstream.origin import is_hf
from leanify.warm.blocks import uncached

FORMATS = ("hf", "timm", "onnx", "torch-export")
TOLERANCE = 1e-4  # of float32 outputs, in units of the largest: another runtime sums in another order
SHARPEST = 1e-2  # beyond which outputs say nothing, however much a model rounds
TOKENS = 16


def export(
    source: str | Path, *, format: str, output: str | Path, with_code: bool = False, fixed: bool = False
) -> Path:
    """Write the model of any SOURCE with weights for another loader. Returns ``output``.

    ``format`` is ``"hf"``, ``"timm"``, ``"onnx"`` or ``"torch-export"``. ``with_code`` adds a modelling file
    to "hf" where transformers cannot express the shape. A program takes any batch and any number of tokens up
    to what the model has positions for; where upstream's forward fixes one, it is refused unless ``fixed``.
    The export is loaded and must give the same outputs.

    Raises UnsupportedModel where the loader cannot take the shape or gives other outputs, DirectoryError for
    an output that cannot be written, LeanifyError where a package is missing.
    """
    if format not in FORMATS:
        raise LeanifyError(f"--format {format!r} is not one of {', '.join(FORMATS)}")
    if with_code and format != "hf":
        raise LeanifyError(f"--with-code writes a modelling file for transformers; --format {format} takes none")
    target = Path(output)
    if target.exists():
        raise LeanifyError(f"{target} exists already; name an output that does not")
    if find.find(source).weights is None:
        raise SourceError(f"{source} names a model without weights: export a lean directory, a run or a checkpoint")
    model = find.load(source).eval()
    torch.manual_seed(0)
    takes_text = "input_ids" in example_inputs(model, 1, TOKENS)
    inputs = example_inputs(model, 2, TOKENS if takes_text else None)
    with torch.no_grad(), uncached(model):
        expected = outputs_of(call(model, inputs))
    own = partial(_rounding, model, inputs, expected)
    if format in ("hf", "timm"):
        with new_directory(target) as folder:
            if format == "hf":
                _write_hf(model, folder, with_code)
            else:
                _write_timm(model, folder)
            _compare(format, expected, _loaded_elsewhere(format, model, folder, inputs), own)
    else:
        try:
            with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=f".{target.name}.") as folder_name:
                file = Path(folder_name) / target.name
                write = _write_onnx if format == "onnx" else _write_program
                given = write(model, inputs, file, fixed)
                _compare(format, expected, given, own)
                for written in sorted(Path(folder_name).iterdir(), reverse=True):
                    writing.put_in_place(written, target.parent / written.name)
        except OSError as error:
            raise DirectoryError(f"{target} could not be written: {error.strerror or error}") from error
    return target


def outputs_of(value: Any) -> list[Tensor]:
    """Every floating-point tensor of a model's output, caches left out, in order."""
    if isinstance(value, Tensor):
        return [value.detach()] if value.is_floating_point() else []
    found = []
    if isinstance(value, Mapping):
        value = [part for name, part in value.items() if name != "past_key_values"]
    if isinstance(value, (tuple, list)):
        for part in value:
            found += outputs_of(part)
    return found


def _compare(format: str, expected: list[Tensor], given: list[Tensor], own: Callable[[], float] = lambda: 0.0) -> None:
    """Refuse outputs that differ by more than `TOLERANCE` and twice the model's ``own`` rounding."""
    if [x.shape for x in given] != [x.shape for x in expected]:
        shapes = [[tuple(x.shape) for x in side] for side in (given, expected)]
        raise UnsupportedModel(
            f"the exported {format} model gives {shapes[0]}, leanify's gives {shapes[1]}; not written"
        )
    error = _difference(given, expected)
    if not error < TOLERANCE and not error < min(SHARPEST, 2 * own()):
        raise UnsupportedModel(
            f"the exported {format} model gives other outputs (they differ by {error:.1e}); not written"
        )


def _difference(given: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest difference of some outputs, each in units of its largest entry."""
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-9)) for a, b in zip(given, wanted, strict=True))


def _rounding(model: nn.Module, inputs: Mapping[str, Tensor], given: list[Tensor]) -> float:
    """How far a model's outputs are from those in float64; 0 where it does not run so.

    An attention whose logits are large rounds much: T5's are not divided by √head_dim, so that its softmax is sharp.
    """
    double = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    try:
        exact = copy.deepcopy(model).double()
        with torch.no_grad(), uncached(exact):
            return _difference(given, outputs_of(call(exact, double)))
    except (RuntimeError, TypeError, ValueError):  # upstream makes a tensor of a type of its own
        return 0.0


# -- directories -------------


def _write_hf(model: Any, folder: Path, with_code: bool) -> None:
    if not is_hf(model):
        raise UnsupportedModel(
            f"{type(model).__name__} is no transformers model: export it to timm, onnx or torch-export"
        )
    if describe(model).architecture is None:
        model.save_pretrained(folder)
    elif not with_code:
        raise UnsupportedModel(
            f"transformers cannot express this shape of {type(model).__name__}: --with-code writes a modelling file "
            "beside it, which transformers loads with trust_remote_code=True"
        )
    else:
        config = modelling.config_of(model)
        config.save_pretrained(folder)
        writing.write(folder / modelling.FILE, modelling.CODE.format(cls=type(model).__name__))
        tensors, _ = lean_directory.untied(model)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    side_files.carry(model, folder)


def _write_timm(model: Any, folder: Path) -> None:
    found = describe(model)
    if found.origin.library != "timm":
        raise UnsupportedModel(f"{type(model).__name__} is no timm model: export it to hf, onnx or torch-export")
    if found.architecture is not None or "attn_layer" in found.origin.options:
        raise UnsupportedModel(
            "timm alone cannot express this shape, and loads no code with a model: export to onnx or torch-export, or "
            "let timm load the lean directory itself, after `import leanify`"
        )
    words = timm_config(model, found)
    writing.write(folder / "config.json", json.dumps(words, indent=2) + "\n")
    save_file(lean_directory.untied(model)[0], folder / "model.safetensors", metadata={"format": "pt"})


def _loaded_elsewhere(format: str, model: nn.Module, folder: Path, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """What another process gives that loads the directory by upstream alone."""
    cls = type(model).__name__
    if (folder / modelling.FILE).is_file():
        cls = next(iter(json.loads((folder / "config.json").read_text())["auto_map"]))
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        save_file({key: value.contiguous() for key, value in inputs.items()}, place / "inputs.safetensors")
        arguments = [folder.absolute(), format, cls, place / "inputs.safetensors", place / "outputs.safetensors"]
        environment = {**os.environ, "HF_MODULES_CACHE": name, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [sys.executable, "-P", load_alone.__file__, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UnsupportedModel(f"the exported {format} directory does not load without leanify: {why}; not written")
        found = load_file(place / "outputs.safetensors")
    return [found[key] for key in sorted(found)]


# -- programs -------------


def _programs(model: nn.Module, inputs: Mapping[str, Tensor]) -> Iterator[tuple[Any, str]]:
    """Exported programs, the freest first: any batch and number of tokens, any batch, these inputs' sizes
    alone. With each the sizes of its inputs that are fixed, in words; "" where all are free.

    Which of them upstream's forward allows, only tracing shows; it also names the most tokens where positions
    stand in a table. Raises UnsupportedModel where none can be made.
    """
    plain = Positional(model, list(inputs), outputs_of).eval()
    batch = {0: torch.export.Dim("batch", min=1)}
    texts = [name for name, x in inputs.items() if x.dim() == 2 and not x.is_floating_point()]

    def free(most: int | None) -> tuple[dict[int, Any], ...]:
        both = {**batch, 1: torch.export.Dim("tokens", min=2, max=most)}
        return tuple(both if name in texts else batch for name in inputs)

    made, failed = 0, "nothing was tried"
    one_batch = f"a batch of {len(next(iter(inputs.values())))}"
    tried: list[tuple[Any, str]] = [((batch,) * len(inputs), ""), (None, one_batch)]
    if texts:
        tokens = f"{inputs[texts[0]].shape[1]} tokens"
        tried = [(free(None), ""), ((batch,) * len(inputs), tokens), (None, f"{one_batch} and {tokens}")]
    while tried:
        shapes, fixed = tried.pop(0)
        try:
            with torch.no_grad(), uncached(model), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dynamic = None if shapes is None else {"inputs": shapes}
                program = torch.export.export(plain, tuple(inputs.values()), dynamic_shapes=dynamic)
        except Exception as error:  # torch.export raises from many places
            failed = first_line(error)
            most = re.search(r"tokens = Dim\('tokens',[^)]*max=(\d+)", str(error))
            if most is not None and not fixed:
                tried.insert(0, (free(int(most[1])), fixed))
            continue
        made += 1
        yield program, fixed
    if not made:
        raise UnsupportedModel(f"torch.export cannot trace {type(model).__name__}: {failed}")


def _check_free(fixes: str, model: nn.Module, fixed: bool) -> None:
    if fixes and not fixed:
        raise UnsupportedModel(
            f"the exported {type(model).__name__} would take {fixes} and nothing else: upstream's forward fixes that. "
            "--fixed writes it for that size alone"
        )


def _write_program(model: nn.Module, inputs: Mapping[str, Tensor], file: Path, fixed: bool) -> list[Tensor]:
    program, fixes = next(_programs(model, inputs))
    _check_free(fixes, model, fixed)
    written = io.BytesIO()  # torch's own writer ends the process where the disk is full
    torch.export.save(program, written)
    writing.write(file, written.getvalue())
    with torch.no_grad():
        return list(torch.export.load(file).module()(*inputs.values()))


def _write_onnx(model: nn.Module, inputs: Mapping[str, Tensor], file: Path, fixed: bool) -> list[Tensor]:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    except ImportError as error:
        raise LeanifyError(f"--format onnx needs {error.name}: pip install leanify[onnx]") from error
    if is_hf(model):  # torch cannot decompose every use of its fused attention; plain softmax says the same
        model.set_attn_implementation("eager")  # type: ignore[operator]
    failed = ""
    for program, fixes in _programs(model, inputs):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                names = list(inputs)
                made: Any = torch.onnx.export(program, (), None, input_names=names, verbose=False, external_data=False)
                made.save(file)
        except Exception as error:  # from torch's exporter, of every kind
            failed = first_line(error)
            continue
        _check_free(fixes, model, fixed)
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        given = zip((i.name for i in session.get_inputs()), inputs.values(), strict=True)
        return [torch.from_numpy(x) for x in session.run(None, {name: x.numpy() for name, x in given})]
    raise UnsupportedModel(f"torch cannot write {type(model).__name__} as ONNX: {failed}")
