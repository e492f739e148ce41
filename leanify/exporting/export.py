"""Write a model for another loader (transformers, timm, torch.export, onnxruntime), and check it by running it there.

For hf and timm, a process that cannot import leanify loads the directory and runs it. If the outputs differ, nothing
is written.
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

from leanify.carrying.blocks import disable_cache
from leanify.core.errors import DirectoryError, LeanifyError, SourceError, UnsupportedModel
from leanify.core.files import writing
from leanify.core.files.writing import new_directory
from leanify.exporting import load_alone
from leanify.exporting.load_alone import output_tensors
from leanify.profiling.forward import Positional, call
from leanify.sources import find, lean_directory, modelling, side_files
from leanify.sources.source import describe
from leanify.sources.timm_hooks import timm_config
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import first_line
from leanify.upstream.origin import in_mode, is_hf

FORMATS = ("hf", "timm", "onnx", "torch-export")
TOLERANCE = 1e-4  # of float32 outputs, relative to the largest: other runtimes sum in another order
SHARPEST = 1e-2  # maximum tolerance, even for models with large rounding errors
TOKENS = 16


def export(
    source: str | Path, *, format: str, output: str | Path, with_code: bool = False, fixed: bool = False
) -> Path:
    """Export the model of any SOURCE with weights for another loader. Returns ``output``.

    ``format`` is ``"hf"``, ``"timm"``, ``"onnx"`` or ``"torch-export"``. ``with_code`` adds a modelling file to "hf" if
    transformers cannot express the shape. A program accepts any batch size and any number of tokens up to the model's
    positions; if upstream's forward fixes one of them, the export is refused unless ``fixed``. The export is loaded and
    must reproduce the outputs.

    Raises UnsupportedModel if the loader does not support the shape or gives different outputs, DirectoryError for an
    output that cannot be written, LeanifyError if a package is missing.
    """
    # check the request before anything is loaded
    if format not in FORMATS:
        raise LeanifyError(f"--format {format!r} is not one of {', '.join(FORMATS)}")
    if with_code and format != "hf":
        raise LeanifyError(f"--with-code writes a modelling file for transformers; --format {format} takes none")
    target = Path(output)
    if target.exists():
        raise LeanifyError(f"{target} exists already; name an output that does not")
    if find.find(source).weights is None:
        raise SourceError(f"{source} names a model without weights: export a lean directory, a run or a checkpoint")
    # outputs of the original on a batch of two samples
    model = in_mode(find.load(source))
    torch.manual_seed(0)
    tokens = TOKENS if "input_ids" in example_inputs(model, 1, TOKENS) else None
    inputs = example_inputs(model, 2, tokens)
    with torch.no_grad(), disable_cache(model):
        reference = output_tensors(call(model, inputs))
    own_rounding = partial(_rounding, model, inputs, reference)
    # a directory, loaded and run by another process
    if format in ("hf", "timm"):
        with new_directory(target) as folder:
            if format == "hf":
                _write_hf(model, folder, with_code)
            else:
                _write_timm(model, folder)
            _compare(format, reference, _run_alone(format, model, folder, inputs), own_rounding)
    else:
        # a program, loaded and run by its runtime; files are renamed into place last
        try:
            with writing.temp_folder(target.absolute()) as folder:
                file = folder / target.name
                write = _write_onnx if format == "onnx" else _write_program
                outputs = write(model, inputs, file, fixed)
                _compare(format, reference, outputs, own_rounding)
                for path in sorted(folder.iterdir(), reverse=True):
                    writing.rename_new(path, target.parent / path.name)
        except OSError as error:
            at = error.filename2 or target  # a program of several files may meet one of them
            raise DirectoryError(f"{at} could not be written: {error.strerror or error}") from error
    return target


def _compare(format: str, reference: list[Tensor], outputs: list[Tensor], own_rounding: Callable[[], float]) -> None:
    """Raise UnsupportedModel if outputs differ by more than `TOLERANCE` and twice the model's own rounding error."""
    if [x.shape for x in outputs] != [x.shape for x in reference]:
        shapes, reference_shapes = [tuple(x.shape) for x in outputs], [tuple(x.shape) for x in reference]
        raise UnsupportedModel(
            f"the exported {format} model gives {shapes}, leanify's gives {reference_shapes}; not written"
        )
    error = _difference(outputs, reference)
    if not error < TOLERANCE and not error < min(SHARPEST, 2 * own_rounding()):
        raise UnsupportedModel(
            f"the exported {format} model gives different outputs (relative error {error:.1e}); not written"
        )


def _difference(outputs: list[Tensor], reference: list[Tensor]) -> float:
    """Return the largest difference between outputs, each relative to its largest entry."""
    differences = []
    for a, b in zip(outputs, reference, strict=True):
        differences.append(float((a - b).abs().max() / b.abs().max().clamp(min=1e-9)))
    return max(differences)


def _rounding(model: nn.Module, inputs: Mapping[str, Tensor], outputs: list[Tensor]) -> float:
    """Return the difference between a model's outputs and its float64 outputs; 0 if it does not run in float64.

    Attentions with large logits have large rounding errors: T5 does not divide logits by √head_dim, so its softmax is
    sharp.
    """
    double = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    try:
        exact = copy.deepcopy(model).double()
        with torch.no_grad(), disable_cache(exact):
            return _difference(outputs, output_tensors(call(exact, double)))
    except (RuntimeError, TypeError, ValueError):  # upstream creates a tensor of a fixed type
        return 0.0


# -- directories -------------


def _write_hf(model: Any, folder: Path, with_code: bool) -> None:
    if not is_hf(model):
        raise UnsupportedModel(
            f"{type(model).__name__} is not a transformers model: export it to timm, onnx or torch-export"
        )
    if describe(model).architecture is None:
        model.save_pretrained(folder)
    elif not with_code:
        raise UnsupportedModel(
            f"transformers cannot express this shape of {type(model).__name__}: --with-code writes a modelling file "
            "that transformers loads with trust_remote_code=True"
        )
    else:
        # the configuration, the modelling code and the weights
        config = modelling.get_config(model)
        config.save_pretrained(folder)
        writing.write(folder / modelling.FILE, modelling.code_text(model))
        tensors, _ = lean_directory.untie_tensors(model)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    side_files.copy_side_files(model, folder)


def _write_timm(model: Any, folder: Path) -> None:
    origin = describe(model)
    if origin.origin.library != "timm":
        raise UnsupportedModel(f"{type(model).__name__} is not a timm model: export it to hf, onnx or torch-export")
    if origin.architecture is not None or "attn_layer" in origin.origin.options:
        raise UnsupportedModel(
            "timm alone cannot express this shape, and does not load code: export to onnx or torch-export, or "
            "let timm load the lean directory itself, after `import leanify`"
        )
    words = timm_config(model, origin)
    writing.write(folder / "config.json", json.dumps(words, indent=2) + "\n")
    save_file(lean_directory.untie_tensors(model)[0], folder / "model.safetensors", metadata={"format": "pt"})


def _run_alone(format: str, model: nn.Module, folder: Path, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the outputs of another process that loads the directory with upstream alone."""
    cls = type(model).__name__
    if (folder / modelling.FILE).is_file():
        cls = next(iter(json.loads((folder / "config.json").read_text())["auto_map"]))
    # inputs and outputs are exchanged as files; the process has its own cache and no network
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        save_file({key: value.contiguous() for key, value in inputs.items()}, place / "inputs.safetensors")
        arguments = [folder.absolute(), format, cls, place / "inputs.safetensors", place / "outputs.safetensors"]
        environment = {**os.environ, "HF_MODULES_CACHE": name, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        process = subprocess.run(
            [sys.executable, "-P", load_alone.__file__, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environment,
        )
        if process.returncode:
            why = (process.stderr.strip().splitlines() or ["no message"])[-1]
            raise UnsupportedModel(f"the exported {format} directory does not load without leanify: {why}; not written")
        outputs = load_file(place / "outputs.safetensors")
    return [outputs[key] for key in sorted(outputs)]


# -- programs -------------


def _programs(model: nn.Module, inputs: Mapping[str, Tensor]) -> Iterator[tuple[Any, str]]:
    """Yield exported programs with a note on their fixed sizes ("" if none is), from the most to the least general: any
    batch and number of tokens, any batch, then only the sizes of these inputs.

    Tracing decides which of them upstream's forward allows; it also finds the maximum number of tokens if positions
    are stored in a table. Raises UnsupportedModel if no program can be exported.
    """
    plain = in_mode(Positional(model, list(inputs), output_tensors))
    batch = {0: torch.export.Dim("batch", min=1)}
    texts = [name for name, x in inputs.items() if x.dim() == 2 and not x.is_floating_point()]

    def free(max_length: int | None) -> tuple[dict[int, Any], ...]:
        both = {**batch, 1: torch.export.Dim("tokens", min=2, max=max_length)}
        return tuple(both if name in texts else batch for name in inputs)

    # (dynamic shapes, note on the fixed sizes), most general first
    program_count, reason = 0, "nothing was tried"
    one_batch = f"a batch of {len(next(iter(inputs.values())))}"
    attempts: list[tuple[Any, str]] = [((batch,) * len(inputs), ""), (None, one_batch)]
    if texts:
        tokens = f"{inputs[texts[0]].shape[1]} tokens"
        attempts = [(free(None), ""), ((batch,) * len(inputs), tokens), (None, f"{one_batch} and {tokens}")]
    while attempts:
        shapes, dimension_note = attempts.pop(0)
        try:
            with torch.no_grad(), disable_cache(model), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dynamic = None if shapes is None else {"inputs": shapes}
                program = torch.export.export(plain, tuple(inputs.values()), dynamic_shapes=dynamic)
        except Exception as error:  # torch.export raises from many places
            reason = first_line(error)
            # the error names the maximum number of tokens: try again with it
            limit_match = re.search(r"tokens = Dim\('tokens',[^)]*max=(\d+)", str(error))
            if limit_match is not None and not dimension_note:
                attempts.insert(0, (free(int(limit_match[1])), dimension_note))
            continue
        program_count += 1
        yield program, dimension_note
    if not program_count:
        raise UnsupportedModel(f"torch.export cannot trace {type(model).__name__}: {reason}")


def _check_free(fixes: str, model: nn.Module, fixed: bool) -> None:
    if fixes and not fixed:
        raise UnsupportedModel(
            f"the exported {type(model).__name__} would take only {fixes}: upstream's forward fixes them. "
            "--fixed writes it for that size alone"
        )


def _write_program(model: nn.Module, inputs: Mapping[str, Tensor], file: Path, fixed: bool) -> list[Tensor]:
    program, fixes = next(_programs(model, inputs))
    _check_free(fixes, model, fixed)
    buffer = io.BytesIO()  # torch's writer aborts the process if the disk is full
    torch.export.save(program, buffer)
    writing.write(file, buffer.getvalue())
    with torch.no_grad():
        return list(torch.export.load(file).module()(*inputs.values()))


def _write_onnx(model: nn.Module, inputs: Mapping[str, Tensor], file: Path, fixed: bool) -> list[Tensor]:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    except ImportError as error:
        raise LeanifyError(f"--format onnx needs {error.name}: pip install leanify[onnx]") from error
    if is_hf(model):  # torch cannot decompose every fused attention; eager attention is equivalent
        model.set_attn_implementation("eager")  # type: ignore[operator]
        # nor grouped expert products; batched products over each token's gathered experts are equivalent
        for module in model.modules():
            config: Any = getattr(module, "config", None)
            if getattr(config, "_experts_implementation", None) is not None:
                config._experts_implementation = "batched_mm"
    reason = ""
    for program, fixes in _programs(model, inputs):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                names = list(inputs)
                onnx_program: Any = torch.onnx.export(
                    program, (), None, input_names=names, verbose=False, external_data=False
                )
                onnx_program.save(file)
        except Exception as error:  # the exporter raises errors of many types
            reason = first_line(error)
            continue
        _check_free(fixes, model, fixed)
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        feeds = {}
        for node, value in zip(session.get_inputs(), inputs.values(), strict=True):
            feeds[node.name] = value.numpy()
        return [torch.from_numpy(x) for x in session.run(None, feeds)]
    raise UnsupportedModel(f"torch cannot write {type(model).__name__} as ONNX: {reason}")
