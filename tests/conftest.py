"""What every test shares: one thread a process (two run side by side), no network, and prices that are counted."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["LEANIFY_PRICES"] = "off"  # what is remembered would answer for the code that is under test

import torch

torch.set_num_threads(1)
