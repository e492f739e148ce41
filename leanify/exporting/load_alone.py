"""Script: load an exported directory with upstream alone, run it on given inputs, and save the outputs.

    python -P load_alone.py FOLDER hf|timm CLASS INPUTS.safetensors OUTPUTS.safetensors

It runs in a process that cannot import leanify, so a directory that loads here loads anywhere without leanify.
"""

from __future__ import annotations

import sys
from typing import Any


def main(folder: str, library: str, cls: str, inputs_file: str, outputs_file: str) -> None:
    sys.modules["leanify"] = None  # type: ignore[assignment]
    import torch
    from safetensors.torch import load_file, save_file

    _mend_torchvision()
    inputs = load_file(inputs_file)
    if library == "timm":
        import timm

        model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    else:
        import transformers

        trusts = cls.startswith("Auto")
        model = getattr(transformers, cls).from_pretrained(folder, trust_remote_code=trusts)
    model.eval()
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "use_cache"):
            module.config.use_cache = False
    with torch.no_grad():
        output = model(inputs["x"]) if set(inputs) == {"x"} else model(**inputs)
    save_file({f"{i:04d}": x.contiguous().clone() for i, x in enumerate(output_tensors(output))}, outputs_file)


def _mend_torchvision() -> None:
    """Register two schemas that torchvision for CUDA lacks with a CPU-only torch; without them, timm and transformers
    fail to import.
    """
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_KEPT"] = library  # the schemas exist as long as the library object
    except ImportError:
        return


def output_tensors(value: Any) -> list[Any]:
    """Return every floating-point tensor of a model's output in order, without caches."""
    if hasattr(value, "is_floating_point"):
        return [value.detach()] if value.is_floating_point() else []
    if hasattr(value, "items"):
        value = [part for name, part in value.items() if name != "past_key_values"]
    tensors = []
    for part in value if isinstance(value, (tuple, list)) else ():
        tensors += output_tensors(part)
    return tensors


if __name__ == "__main__":
    main(*sys.argv[1:])
