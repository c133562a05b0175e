"""`xcecli`: what an XCE knows, and what an operator does with it, in the manner of `bjobs`, `bhosts`, `bstop` and `badmin`."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from gangflow.cli import xce_acts, xce_lists
from gangflow.cli.xce_app import app
from gangflow.errors import GangflowError

__all__ = ["app", "main", "xce_acts", "xce_lists"]


def _later(name: str, what: str) -> None:
    @app.command(name, hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def refuse() -> None:
        Console(stderr=True).print(f"xcecli {name}: {what} is not part of this version.", style="red", markup=False)
        raise typer.Exit(2)


_later("plan", "planning before submission")


def main() -> None:
    """The entry point: every error of gangflow's becomes one message, its remedy, and its exit code."""
    try:
        app()
    except GangflowError as error:
        errors = Console(stderr=True)
        errors.print(error.message, style="red", markup=False, highlight=False, soft_wrap=True)
        if error.advice:
            errors.print(f"→ {error.advice}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
