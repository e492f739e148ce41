"""Read and write files in folders that may come from strangers.

A run, a model or a data set is handed around, so any name in it may be a link to a private file, a pipe that never
ends, an archive that unpacks to a terabyte, or a pickle that runs code. These modules are the only ones that open,
write, rename or remove such files; `tests/test_writing.py` reads the source for others.
"""
