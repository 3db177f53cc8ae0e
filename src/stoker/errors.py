"""The exception tree. Each error says what was seen, what is allowed, and what to do.

StokerError
├── UsageError        wrong option, missing file, unknown name         exit code 2
├── ScriptFailedError the user's own script failed                     exit code 3
├── TooFewStepsError  not enough steps to judge                        exit code 4
├── UnsafeError       refused, because it could hurt the machine       exit code 5
└── MissingExtraError an optional part is not installed                exit code 2
"""


class StokerError(Exception):
    """Anything Stoker raises on purpose; its text is one line for people."""

    exit_code = 1


class UsageError(StokerError):
    """The call itself is wrong: an option, a path or a name."""

    exit_code = 2


class ScriptFailedError(StokerError):
    """The user's script ended with an error of its own."""

    exit_code = 3


class TooFewStepsError(StokerError):
    """The run was too short to judge."""

    exit_code = 4


class UnsafeError(StokerError):
    """Refused, because it could exhaust the machine or overwrite something."""

    exit_code = 5


class MissingExtraError(UsageError):
    """An optional part of Stoker is needed and not installed."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed; run: pip install 'stoker[{extra}]'")
