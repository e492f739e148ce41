"""What stands behind the numbers of `recipes/results`: sweeps, rivals, costs. Not in the wheel.

Each is `python -m recipes.research.NAME` from a clone, and says with `-h` what it takes. Those that take hours have a
small setting, by which `tests/test_research.py` runs all of them.

ranking.sweep, ranking.rates, ranking.pages     which designs of equal parameters are best
scale, farthest_point, demonstration, reference_table                other sizes and tasks, ten repetitions, references
warm_minilm, warm_small, warm_rivals, rivals, shrinking              smaller shapes of trained models
statistics_simulated                                                 how often a study's answers are wrong
plans, modules, memory, seventy_billion                              designs, own modules, and predicted memory
learning                                                             what own data's proposed lines learn, and take
gpu, speed, times, condition_cost, training_cost                     what things take
rival_programs, rival_steps, rival_curves, beside                    timm's script, transformers' Trainer, other tools
mutants, recipe_costs                                                what the tests notice; recipes/costs.json
"""
