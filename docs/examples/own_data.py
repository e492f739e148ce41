"""A data set of one's own: pictures of stripes, which lie (class 0) or stand (class 1), drawn as they are asked for."""

import torch


class Stripes(torch.utils.data.Dataset):
    """Any map-style data set of torch: its items are (inputs, target)."""

    def __init__(self, number, seed):
        self.number, self.seed = number, seed

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(1_000_000 * self.seed + index)
        picture = torch.randn(1, 16, 16, generator=generator)
        kind, place = index % 2, int(torch.randint(16, (), generator=generator))
        (picture[0] if kind == 0 else picture[0].T)[place] += 2
        return picture, kind


def stripes(data, model):
    """To train on, to validate on, and the number of classes."""
    return Stripes(data.options.get("number", 512), seed=0), Stripes(128, seed=1), 2
