"""``onceward completion``: the script by which a shell completes commands and options."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from onceward.ops.cli.exit_codes import DONE
from onceward.ops.cli.options import said


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], said("The shell.")], /) -> int:
    """
    Print the completion script of a shell.

    Write it to the place where the shell looks for completions: for bash
    ~/.local/share/bash-completion/completions/onceward, for zsh a folder of $fpath (as _onceward),
    for fish ~/.config/fish/completions/onceward.fish.

    Example: onceward completion bash
    """
    from onceward.ops.cli.app import build  # noqa: PLC0415 - it imports this module

    sys.stdout.write(build().generate_completion(prog_name="onceward", shell=shell))
    return DONE
