"""The command line: one verb per file, errors mapped to exit codes in one place."""

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from stoker.errors import StokerError

# With what `stoker --help` says of each: it answers at once, because no verb has to be imported for it.
VERBS = {
    "doctor": "Find out where the time of a training goes, and why.",
    "tune": "Try knobs against your own configuration, keep what is proven faster.",
    "run": "Train with other knobs, the script untouched.",
    "watch": "A real training, live in the terminal.",
    "predict": "What if: the step, the epoch and the memory with other knobs.",
    "bench": "A data set's ceilings, and how well its shuffle mixes.",
    "report": "A recorded run or tuning again, in any form.",
    "compare": "Two recorded runs side by side.",
    "ui": "Runs, decisions and data sets in the browser.",
    "demo": "One of five real investigations, end to end.",
    "pack": "Write a data set anew, in shards that load at memory speed.",
}
INTERRUPTED = 130


class _Verbs(click.Group):
    """A group that imports a verb's module when the verb is called; none of them imports torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = getattr(import_module(f"stoker.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known verbs: {', '.join(VERBS)}"
            raise click.UsageError(f"no verb is called {args[0]}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stoker", prog_name="stoker")
def stoker() -> None:
    """Find out why a PyTorch training is slow, prove it, fix it, and write the decision down."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; what goes wrong is one line, not a traceback."""
    try:
        code = stoker.main(arguments, prog_name="stoker", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        sys.exit(2)
    except click.ClickException as error:
        _complain(_sentence(error))
        sys.exit(2)
    except StokerError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _complain("stopped")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


NUMBERS = {
    "a valid float range": "a number",
    "a valid integer range": "a whole number",
    "a valid integer": "a whole number",
}
"""What click calls a number, and what people do."""


def _sentence(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split())
    for clicks, ours in NUMBERS.items():
        text = text.replace(clicks, ours)
    context = getattr(error, "ctx", None)
    stop = "" if text.endswith((".", "?")) else "."
    return f"{text}{stop} See: {context.command_path} --help" if context is not None else text


def _complain(text: str) -> None:
    print(f"stoker: {text}", file=sys.stderr)
