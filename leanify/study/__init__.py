"""Studies: does trading depth for heads pay off on the user's own data?

`comparing` is what is called. `designs` finds and prices the designs to compare, `plan` is a study as a value, `folder`
its directory on disk. `warm_start` writes initial weights, `worker` executes one run, `runner` many, `engines`
schedules them. `values` and `results` hold the findings, computed with `statistics`; `efficiency`, `measure` and
`forecast` cover costs; `report` writes the page.

Names are loaded when they are first used: what only looks at a folder imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leanify.study.comparing import Request as Request
    from leanify.study.comparing import compare as compare
    from leanify.study.comparing import finished as finished
    from leanify.study.comparing import folder_of as folder_of
    from leanify.study.comparing import measure_costs as measure_costs
    from leanify.study.comparing import new_folder as new_folder
    from leanify.study.comparing import planned as planned
    from leanify.study.comparing import telling as telling
    from leanify.study.comparing import title_of as title_of
    from leanify.study.comparing import train_all as train_all
    from leanify.study.folder import REPORT as REPORT
    from leanify.study.folder import StudyFolder as StudyFolder
    from leanify.study.plan import StudyPlan as StudyPlan
    from leanify.study.results import Study as Study

_HOMES = {
    "REPORT": "folder",
    "Request": "comparing",
    "Study": "results",
    "StudyFolder": "folder",
    "StudyPlan": "plan",
    "compare": "comparing",
    "finished": "comparing",
    "folder_of": "comparing",
    "measure_costs": "comparing",
    "new_folder": "comparing",
    "planned": "comparing",
    "telling": "comparing",
    "title_of": "comparing",
    "train_all": "comparing",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
