"""The exception tree. Each error says what was seen, what is allowed, and what to do.

StokerError
├── UsageError               wrong option, missing file, unknown name         exit code 2
│   ├── MissingExtraError    an optional part is not installed
│   ├── NoDataError          no file matches, or there is no row to load
│   ├── OtherSourceError     a saved state belongs to another source
│   └── DestinationExistsError  there is something else where the result would go
├── ScriptFailedError        the user's own script failed                     exit code 3
├── TooFewStepsError         not enough steps to judge                        exit code 4
├── UnsafeError              refused, because it could hurt the machine       exit code 5
├── DataError                bad data; names the file, the row, the reason
│   ├── EmptyFileError       a file without a byte, or without a row
│   ├── TruncatedError       a file that is shorter than its header says
│   ├── CorruptError         bytes that cannot be decoded
│   ├── OtherTypeError       a file whose dtype or schema differs from the first one's
│   ├── ChecksumError        bytes that are not those that were listed, also when asked for again
│   ├── ChangedError         an object or a file that is another one than when it was listed or planned
│   ├── VanishedError        a file that was there, and is not any more
│   ├── MissingChunkError    a chunk of a volume that its store does not have
│   └── OtherTokenizerError  tokens that were made with another tokenizer
├── RemoteError              a remote store does not answer as it should; names the object
│   ├── AccessError          credentials are missing, wrong or expired
│   ├── UnreachableError     no connection: unknown host, refused, cut again and again
│   └── TimedOutError        no answer in time, also when asked again
├── DiskFullError            no room where something had to be written
├── MapError                 the user's `map` function failed on a batch
└── LoaderError              the loader cannot go on
    ├── WorkerDiedError      a worker process was ended from outside
    ├── ClosedError          the loader was closed
    └── ForkedError          an iterator was used in a forked child
"""

from typing import Any


class StokerError(Exception):
    """Anything Stoker raises on purpose; its text is one line for people."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """What crosses a process boundary: an error's text is not what its constructor takes."""
        return _revive, (type(self), self.args, self.__dict__)


def _revive(kind: type[StokerError], args: tuple[Any, ...], state: dict[str, Any]) -> StokerError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


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


class NoDataError(UsageError):
    """No file matches, or there is nothing in them."""


class OtherSourceError(UsageError):
    """A saved state was taken on another source than the one it is loaded on."""


class DestinationExistsError(UsageError):
    """There is something else where the result would go; it is left alone."""


class DataError(StokerError):
    """Bad data. `path` is the file, `row` the row in it (None: the whole file), `reason` what is wrong."""

    def __init__(self, path: str, reason: str, row: int | None = None) -> None:
        self.path = path
        self.reason = reason
        self.row = row
        super().__init__(f"{path}{'' if row is None else f', row {row}'}: {reason}")


class EmptyFileError(DataError):
    """A file without a byte, or without a row."""


class TruncatedError(DataError):
    """A file that is shorter than its own header says."""


class CorruptError(DataError):
    """Bytes that cannot be decoded."""


class OtherTypeError(DataError):
    """A file whose dtype or schema differs from that of the first file."""


class ChecksumError(DataError):
    """Bytes whose checksum is not the listed one, also when they are asked for again."""


class ChangedError(DataError):
    """An object or a file that is another one than when it was listed or planned."""


class VanishedError(DataError):
    """A file that was there when the source was opened, and is not any more, or a link to one that is not there."""


class RemoteError(StokerError):
    """A remote store does not answer as it should. `url` is the object, `reason` what happened."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: {reason}")


class AccessError(RemoteError):
    """Credentials are missing, wrong or expired, or do not allow this."""


class UnreachableError(RemoteError):
    """No connection: the host is unknown, refuses, or cuts the connection again and again."""


class TimedOutError(RemoteError):
    """No answer in time, also when asked again."""


class MissingChunkError(DataError):
    """A chunk of a volume that its store does not have."""


class OtherTokenizerError(DataError):
    """Tokens that were made with another tokenizer than the one named."""


class DiskFullError(StokerError):
    """No room where something had to be written; what was there is untouched."""


class MapError(StokerError):
    """The user's `map` function failed; its own error is the cause."""


class LoaderError(StokerError):
    """The loader cannot go on."""


class WorkerDiedError(LoaderError):
    """A worker process was ended from outside, for instance by the out-of-memory killer."""


class ClosedError(LoaderError):
    """The loader was closed while somebody waited for a batch, or before."""


class ForkedError(LoaderError):
    """An iterator of the parent process was used in a forked child, which has none of its threads."""
