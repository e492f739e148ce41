"""The exceptions that callers can catch.

    LeanifyError
     ├─ SourceError         a name, path or checkpoint that does not lead to a model
     ├─ UnsupportedModel    a model whose attention cannot be redesigned, with the reason
     ├─ ShapeError          a shape that this model cannot take (heads that break key/value groups, …)
     ├─ RecipeError         a recipe with an unknown key or a wrong type, or an unknown recipe
     ├─ BudgetError         a budget that is malformed or that no design meets
     ├─ DataError           data that cannot be read or does not fit the model
     ├─ TrainingError       training that cannot continue: the loss is not finite, the disk is full
     └─ DirectoryError      an output directory that cannot be written, or an input directory without a model

Every message says what was asked, what was found and what would work. The command line prints it and exits 2.
"""


class LeanifyError(Exception):
    """Base class of all errors that leanify raises deliberately.

    ``shared`` errors are raised by every process of a launch, so only the first process prints them.
    """

    shared = False


class SourceError(LeanifyError):
    """A SOURCE that is not a model, or cannot be loaded."""


class UnsupportedModel(LeanifyError):
    """A model that cannot be redesigned; the message says why."""


class ShapeError(LeanifyError):
    """A shape that the model cannot have."""


class RecipeError(LeanifyError):
    """A recipe that is malformed or does not exist."""


class BudgetError(LeanifyError):
    """A budget that is malformed, or that no design meets.

    ``flags`` ends the message: the flags of ``leanify redesign`` that would reach a design.
    """

    def __init__(self, message: str, flags: str = "") -> None:
        super().__init__(message + flags)
        self.message, self.flags = message, flags


class DataError(LeanifyError):
    """Data that cannot be read, does not fit the model, or is empty."""


class DirectoryError(LeanifyError):
    """An output directory that cannot be written, or an input directory without a model."""


class TrainingError(LeanifyError):
    """Training cannot continue; the message says how to resume it."""
