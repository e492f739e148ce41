"""Studies: does trading depth for heads pay off on the user's own data?

`comparing` has the entry points. `planning` makes a plan of what a user asks for, `designs` finds and prices the
designs to compare, `plan` is a study as a value, and `folder` its directory on disk. `warm_start` writes initial
weights, `worker` executes one run, `runner` many, on any engine. `values` and `results` hold the findings, computed
with `statistics`; `measure` measures costs, `duration` predicts the time and memory of a study before it starts;
`tables` and `report` show it.
"""
