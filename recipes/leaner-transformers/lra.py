"""The Long-Range Arena (Tay et al. 2020) as data sets of recipes: ``data.name = "lra.py:listops"``.

    listops      lra_listops.py: nested expressions, generated once or published
    pathfinder   lra_pathfinder.py: two discs and dashed paths, generated once or from a folder of images
    image        lra_image.py: CIFAR-10 as sequences of grey pixels
    text         lra_text.py: IMDb reviews as bytes
    retrieval    lra_retrieval.py: pairs of papers as bytes

Each function takes a recipe's [data] section and its model, and returns the splits (`lra_sequences.py`).
"""

from lra_image import splits as image
from lra_listops import splits as listops
from lra_pathfinder import splits as pathfinder
from lra_retrieval import splits as retrieval
from lra_text import splits as text

__all__ = ["image", "listops", "pathfinder", "retrieval", "text"]
