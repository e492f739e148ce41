"""The help of a command as plain text, with options grouped by their panels."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class PanelCommand(TyperCommand):
    """A command whose plain help has a section for each `rich_help_panel`; options without one come last.

    Arguments are shown by their metavar alone; typer adds braces and the type in Python.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = ["[OPTIONS]"]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                pieces.append(str(param.metavar) if param.required else f"[{param.metavar}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        # (name, help) of each parameter by its panel; hidden ones have no record
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        options: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                panels["Arguments"].append((str(param.metavar), record[1]))
            elif (panel := getattr(param, "rich_help_panel", None)) is not None:
                panels.setdefault(panel, []).append(record)
            else:
                options.append(record)
        for name, records in [*panels.items(), ("Options", options)]:
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
