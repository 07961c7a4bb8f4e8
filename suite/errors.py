"""Every error the suite raises, as one tree, each with the exit code that it costs.

    SuiteError                     1
    ├── UsageError                 2   wrong option, wrong value
    │   └── ConfigurationError     2   a file that cannot be used: names file, place and remedy
    ├── RecordError                2   a plan, a ledger or a record that cannot be read: names the file
    │   └── IncompatibleError      1   records that must not be compared: names the fields
    ├── PreflightError             3   a host is not fit for the run
    ├── HostError                  3   a host did not answer or refused
    ├── DeployError                1   image or container could not be brought to a host
    ├── LaunchError                1   a launch failed: names host, rank, stage
    └── Interrupted              130   Ctrl-C or SIGTERM; what is saved can be resumed

A message has up to three parts, kept apart so that each is always there: what was seen, and what to do
about it. Whoever prints it (one place: ``suite.console``) joins them.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PREFLIGHT = 3
EXIT_INTERRUPTED = 130


class SuiteError(Exception):
    """Base of all errors that the suite raises on purpose.

    Args:
        message: what was seen, with the file, host, key or field it was seen in.
        fix: what the reader can do about it, as one imperative sentence; empty where nothing helps.
    """

    exit_code: int = EXIT_FAILED

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message} Fix: {self.fix}" if self.fix else self.message


class UsageError(SuiteError):
    """An option or argument is wrong."""

    exit_code = EXIT_USAGE


class ConfigurationError(UsageError):
    """A configuration file is wrong.

    Args:
        path: the file.
        where: the place in it, e.g. ``host "h2", key "port"`` or ``line 12``; empty for the whole file.
        message: what is wrong there.
        fix: what to write instead.
    """

    def __init__(self, path: object, where: str, message: str, *, fix: str = "") -> None:
        place = f"{path}: {where}: " if where else f"{path}: "
        super().__init__(place + message, fix=fix)
        self.path = str(path)
        self.where = where


class RecordError(SuiteError):
    """A stored plan, ledger or record is damaged, of another version, or contradicts its neighbours.

    Where it ends a command, it is bad input like a wrong cluster file. A damaged record of one rank ends none: its row
    fails, and that costs 1.
    """

    exit_code = EXIT_USAGE

    def __init__(self, path: object, message: str, *, fix: str = "") -> None:
        super().__init__(f"{path}: {message}", fix=fix)
        self.path = str(path)


class IncompatibleError(SuiteError):
    """Two things must not be compared because named fields differ."""

    def __init__(self, message: str, fields: tuple[str, ...], *, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.fields = fields


class PreflightError(SuiteError):
    """At least one host failed a check that the next step needs."""

    exit_code = EXIT_PREFLIGHT


class HostError(SuiteError):
    """A host could not be reached, refused the key, or its Docker engine did not answer."""

    exit_code = EXIT_PREFLIGHT

    def __init__(self, host: str, message: str, *, fix: str = "") -> None:
        super().__init__(f"{host}: {message}", fix=fix)
        self.host = host


class DeployError(SuiteError):
    """The image or the container could not be brought to a host."""


class LaunchError(SuiteError):
    """A launch could not be carried out, or what it left cannot be used."""


class Interrupted(SuiteError):
    """The user, or a signal, ended the work; everything finished has been saved."""

    exit_code = EXIT_INTERRUPTED
