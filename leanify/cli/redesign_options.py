"""The options of ``leanify redesign``, in the order of its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leanify.cli.options import complete_source

Text = str | None
DEFAULT, HALF = "vit_base", "0.5"

Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE…",
        help=f"timm or transformers names, hub ids, directories, config.json (default: {DEFAULT} at half)",
        autocompletion=complete_source,
    ),
]
TargetParams = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SHARE|COUNT…",
        help="at most this: 0.5, 43M; for towers encoder=0.75,decoder=0.5; several: 0.5 0.75",
    ),
]
Count = Annotated[str, typer.Option(metavar="all|body", help="count all parameters, or only the blocks'")]
MaxMacs = Annotated[Text, typer.Option(metavar="SHARE|COUNT", help="multiply-adds: 0.5, 8G")]
MaxLatency = Annotated[Text, typer.Option(metavar="SHARE|TIME", help="measured here: 0.5, 12ms")]
BatchSize = Annotated[int, typer.Option(metavar="N", min=1, help="with --max-latency: samples per pass")]
Device = Annotated[
    Text, typer.Option(metavar="DEVICE", help="with --max-latency: cpu, cuda, cuda:1 (default: a GPU if any)")
]
Dtype = Annotated[str, typer.Option(metavar="TYPE", help="with --max-latency: float32, bfloat16, float16")]
Compiled = Annotated[bool, typer.Option("--compile", help="with --max-latency: torch.compile every shape")]
LatencyOf = Annotated[
    str, typer.Option(metavar="pass|token", help="with --max-latency: a forward pass, or one more token")
]
MaxMemory = Annotated[Text, typer.Option(metavar="SHARE|BYTES", help="predicted training memory: 0.5, 8GB")]
MaxActive = Annotated[Text, typer.Option(metavar="SHARE|COUNT", help="active parameters per token: 0.5, 3B")]
MaxKv = Annotated[Text, typer.Option(metavar="SHARE|BYTES", help="key/value cache per token: 0.5, 64KB")]
Context = Annotated[int | None, typer.Option(metavar="N", min=1, help="tokens in the cache (default: at most 4096)")]
Depth = Annotated[Text, typer.Option(metavar="N[,N…]", help="fix the blocks: 8, one per stage, or encoder=6")]
Heads = Annotated[Text, typer.Option(metavar="N[,N…]", help="fix the heads")]
HeadDim = Annotated[Text, typer.Option(metavar="N[,N…]", help="fix the channels per head")]
Mlp = Annotated[Text, typer.Option(metavar="N[,N…]", help="fix the hidden units of the MLP")]
Experts = Annotated[Text, typer.Option(metavar="N[,N…]", help="fix the routed experts of a mixture")]
ActiveExperts = Annotated[Text, typer.Option(metavar="N[,N…]", help="fix the active experts per token")]
HeadsMode = Annotated[
    str, typer.Option(metavar="grow|split|auto", help="more heads of the same size, or smaller heads")
]
Multiple = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="unit of MLP and inner width (default: 64; narrow: 8)")
]
TensorParallel = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="devices among which heads and MLP must divide")
]
MinMlp = Annotated[
    float | None, typer.Option(metavar="X", min=0, help="minimum MLP, in widths (default: 2, or 1 if none fits)")
]
MinDepth = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="minimum blocks (default: log3 of the width, a third)")
]
MaxHeads = Annotated[float, typer.Option(metavar="X", min=1, help="at most this many times the baseline's heads")]
Weights = Annotated[Text, typer.Option(metavar="SOURCE", help="carry over these weights instead of new ones")]
Pretrained = Annotated[bool, typer.Option("--pretrained", help="carry over upstream's own weights")]
Data = Annotated[Path | None, typer.Option(metavar="DATA", help="with weights: data to choose what to keep")]
Samples = Annotated[
    int | None, typer.Option(metavar="N", min=2, help="samples of the data; a quarter measure (default: 8,192 tokens)")
]
Top = Annotated[int, typer.Option(metavar="N", help="number of candidates to show", min=1)]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="write a lean directory")]
Control = Annotated[bool, typer.Option("--control", help="with -o: write DIR/lean and DIR/control")]
Force = Annotated[bool, typer.Option("--force", help="replace a directory that leanify wrote")]
AsType = Annotated[
    Text, typer.Option("--as", metavar="TYPE", help="save as another transformers type of the same shape")
]
Seed = Annotated[int, typer.Option(metavar="N", help="seed of the new weights")]
Study = Annotated[Path | None, typer.Option(metavar="STUDY", help="rank by a leanify compare study of your own task")]
