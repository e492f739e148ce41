"""Studies: does trading depth for heads pay off on the user's own data?

`comparing` has the entry points. `designs` finds and prices the designs to compare, `plan` is a study as a value, and
`folder` its directory on disk. `warm_start` writes initial weights, `worker` executes one run, `runner` many, and
`engines` schedule them. `values` and `results` hold the findings, computed with `statistics`; `efficiency` and
`measure` cover costs, `duration` the time of a study before it starts; `report` writes the page.
"""
