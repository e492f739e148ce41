"""Studies: does trading depth for heads pay off on the user's own data?

`comparing` is what is called. `designs` finds and prices the designs to compare, `plan` is a study as a value, `folder`
its directory on disk. `warm_start` writes initial weights, `worker` executes one run, `runner` many, `engines`
schedules them. `values` and `results` hold the findings, computed with `statistics`; `efficiency`, `measure` and
`forecast` cover costs; `report` writes the page.
"""
