"""The predicted spectrum of concatenated heads.

The paper (Leaner Transformers, arXiv 2505.20802) models heads as independent Gaussian matrices. Real
attention is not Gaussian: the prediction gives the position of the peak, not the value of κ.
"""

from __future__ import annotations

import math


def gaussian_kappa(inner: int, tokens: int) -> float:
    """κ of an i.i.d. Gaussian A of ``tokens`` × ``inner`` (Theorem 3.2, eq. 5; the edges of Marchenko and Pastur 1967).

        κ ≈ (√inner + √tokens) / |√inner − √tokens|

    It is symmetric in its arguments, 1 in the limit of many heads, and infinite at its peak, inner = tokens.
    """
    gap = abs(math.sqrt(inner) - math.sqrt(tokens))
    return (math.sqrt(inner) + math.sqrt(tokens)) / gap if gap else math.inf
