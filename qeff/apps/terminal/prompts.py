"""Which prompts to answer: the options, and the list made of them.

``--prompt`` holds several prompts with ``|`` between them, a file one per line.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from qeff.apps.terminal.parser import Parser
from qeff.core.errors import OptionValueError, RequestError

SEPARATOR = "|"


def add_prompt_flags(parser: Parser) -> None:
    """What to answer."""
    group = parser.add_argument_group("prompts")
    group.add_argument("--prompt", metavar="TEXT", help="the prompt; several with | between them")
    group.add_argument(
        "--prompts-txt-file-path", metavar="FILE", help="a text file with one prompt per line"
    )
    group.add_argument(
        "--chat", action="store_true", help="put each prompt into the model's chat template"
    )
    group.add_argument("--system", metavar="TEXT", help="system message; implies --chat")
    group.add_argument(
        "--json", action="store_true", help="print one JSON object: text, token ids, timings"
    )


def read_prompts(args: argparse.Namespace) -> list[str]:
    """The prompts that were asked for, checked before any work is done."""
    if args.prompts_txt_file_path is not None:
        if args.prompt is not None:
            args.screen.note(
                "both --prompt and --prompts-txt-file-path are given: the file is used"
            )
        return prompts_of_file(Path(args.prompts_txt_file_path))
    if args.prompt is None:
        raise OptionValueError(
            "there is no prompt", 'give --prompt "Once upon a time" or --prompts-txt-file-path FILE'
        )
    prompts = str(args.prompt).split(SEPARATOR)
    if not all(prompt.strip() for prompt in prompts):
        raise RequestError("a prompt is empty", f"{SEPARATOR} stands between prompts")
    return prompts


def prompts_of_file(path: Path) -> list[str]:
    """One prompt for each line that is not blank."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{path} is not UTF-8 text (byte {error.start})", "save the file as UTF-8"
        ) from error
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read: {error.strerror}",
            "a text file with one prompt per line is expected",
        ) from error
    prompts = [line for line in text.splitlines() if line.strip()]
    if not prompts:
        raise RequestError(f"{path} holds no prompt", "write one prompt per line")
    return prompts
