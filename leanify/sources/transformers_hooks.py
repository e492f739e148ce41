"""How transformers builds, loads and saves lean models (listed in `upstream.hooks`).

The lean shape is part of the configuration (`upstream.lean_config`), so AutoModel, Trainer, pipeline, PEFT,
sentence-transformers and push_to_hub pass it on without knowing about it. Five hooks are enough, because all
of these go through them:

    PreTrainedConfig._dict_from_json_file   on reading config.json: convert the file's form to the configuration's
    PreTrainedConfig.save_pretrained        on saving: check the values that upstream's constructor accepts
    PreTrainedConfig.to_json_file           on writing: convert back to the file's form
    PreTrainedModel.save_pretrained         before saving: update the configuration's shape from the live module
    __init__ of every model class           after the outermost one: apply the configuration's shape by surgery

Neither ``AutoConfig.register`` nor a lean subclass of every class would do: upstream looks model types up by name in
many places (PEFT's target modules, weight conversions, tokenizers), and there a lean BERT must remain a BERT.
"""

from __future__ import annotations

import functools
import json
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from leanify.upstream.lean_config import buildable, drop, from_file, stored_shape, to_file

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BUILDING: ContextVar[bool] = ContextVar("_BUILDING", default=False)  # whether an outer model is being built


def convert_configurations(module: ModuleType) -> None:  # transformers.configuration_utils
    cls: Any = module.PreTrainedConfig
    read, save, write = cls._dict_from_json_file.__func__, cls.save_pretrained, cls.to_json_file

    @functools.wraps(read)
    def _dict_from_json_file(cls: Any, json_file: Any) -> dict[str, Any]:
        return from_file(read(cls, json_file))

    @functools.wraps(save)
    def save_pretrained(self: Any, *positional: Any, **named: Any) -> Any:
        return save(buildable(self) if stored_shape(self) is not None else self, *positional, **named)

    @functools.wraps(write)
    def to_json_file(self: Any, json_file_path: Any, use_diff: bool = True) -> None:
        if stored_shape(self) is None:
            write(self, json_file_path, use_diff)
            return
        from leanify.core.files import writing

        # on disk: a configuration that upstream can build, and the lean shape under a key of ours
        plain = buildable(self)
        config = plain.to_diff_dict() if use_diff else plain.to_dict()
        text = json.dumps(to_file(plain._encode_special_floats(config)), indent=2, sort_keys=True)
        writing.write(Path(json_file_path), text + "\n")

    cls._dict_from_json_file = classmethod(_dict_from_json_file)
    cls.save_pretrained, cls.to_json_file = save_pretrained, to_json_file


def build_and_save_lean(module: ModuleType) -> None:  # transformers.modeling_utils
    cls: Any = module.PreTrainedModel
    save, subclass = cls.save_pretrained, cls.__init_subclass__.__func__

    @functools.wraps(save)
    def save_pretrained(self: Any, save_directory: Any, *positional: Any, **named: Any) -> Any:
        from leanify.core.errors import LeanifyError
        from leanify.sources.source import describe

        # the shape that the tensors have now; none if upstream's keys suffice
        if stored_shape(self.config) is not None:
            with suppress(LeanifyError):  # PEFT's wrappers hide the maps from `describe`; the shape is then unchanged
                source = describe(self)
                if source.architecture is None:
                    drop(self.config)
                else:
                    self.config.leanify["architecture"] = source.architecture.to_json()
        card = Path(save_directory) / "leanify.json"
        stale = card.is_file()
        # transformers saves weights and configuration
        result = save(self, save_directory, *positional, **named)
        if stale:  # it described the model saved here before
            card.unlink(missing_ok=True)
        return result

    def __init_subclass__(sub: Any, /, **named: Any) -> None:
        subclass(sub, **named)
        _wrap(sub)

    cls.save_pretrained = save_pretrained
    cls.__init_subclass__ = classmethod(__init_subclass__)
    for sub in cls.__subclasses__():
        _wrap(sub)


def _wrap(cls: Any) -> None:
    """Let a class, and those derived from it, build lean shapes."""
    for sub in cls.__subclasses__():
        _wrap(sub)
    init = vars(cls).get("__init__")
    if init is None or hasattr(init, "builds_lean"):
        return

    @functools.wraps(init)
    def __init__(self: Any, *positional: Any, **named: Any) -> None:
        config = positional[0] if positional else named.get("config")
        # an ordinary model, or one that is being built inside a lean one
        if _BUILDING.get() or stored_shape(config) is None:
            init(self, *positional, **named)
            return
        outermost = _BUILDING.set(True)
        try:
            # upstream builds the base, then surgery gives it the shape
            plain = buildable(config)
            init(self, plain, *positional[1:], **{key: value for key, value in named.items() if key != "config"})
            _reshape(self, config)
        finally:
            _BUILDING.reset(outermost)

    __init__.builds_lean = True  # type: ignore[attr-defined]
    cls.__init__ = __init__


def _reshape(model: Any, config: PretrainedConfig) -> None:
    """Reshape a model in place to the shape in a configuration."""
    import torch

    from leanify.reshaping import surgery

    shape, model_shape = stored_shape(config), surgery.read(model)
    assert shape is not None
    on_meta = any(parameter.is_meta for parameter in model.parameters())  # a few may be real (NeuCodec)
    with torch.device("cpu"):  # upstream builds on meta before it loads; the indices of surgery are real
        lean = surgery.write(model, align_stages(shape, model_shape), "keep" if on_meta else "fresh")
    vars(model).update(vars(lean))


def align_stages(shape: Any, model_shape: Any) -> Any:
    """Rename a shape's stages for another class of the same model: ``encoder.layer`` → ``bert.encoder.layer``.

    Stages that the shape lacks keep the model's own. Raises SourceError if they have no stage in common.
    """
    from leanify.core.errors import SourceError

    stages, is_found = [], False
    for stage in model_shape.stages:
        # the stage of the same name, or the only one whose name ends alike
        exact = [o for o in shape.stages if o.name == stage.name]
        matches = [o for o in shape.stages if o.name.endswith(f".{stage.name}") or stage.name.endswith(f".{o.name}")]
        partners = exact or matches
        if len(partners) == 1:
            is_found = True
            stage = replace(partners[0], name=stage.name)
        stages.append(stage)
    if not is_found:
        stored_names = ", ".join(stage.name for stage in shape.stages)
        model_names = ", ".join(stage.name for stage in model_shape.stages)
        raise SourceError(f"the lean shape has the stages {stored_names}, but this model class has {model_names}")
    return replace(model_shape, stages=tuple(stages))
