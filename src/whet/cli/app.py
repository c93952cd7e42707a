"""The command line: one thin function per command, loaded when it is called. No other package imports this one.

Little is imported here, so that signal handlers are set early.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from whet.cli.output import guard_output, guarded_output
from whet.errors import ArtifactError, EnvironmentFault, Interrupted, WhetError
from whet.utils.hf_libraries import load_as_command
from whet.utils.launcher import global_rank, is_launched
from whet.utils.signals import SIGNALS, SignalArrived, defer_during_torch_import, remember, resend_lost_signal
from whet.utils.text import neutral

NO_TEMPORARY_FOLDER = "No usable temporary directory"
"""Beginning of the message of Python's FileNotFoundError."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; whet's errors become one line and an exit code."""
    with guarded_output():
        return _run(arguments)


def _run(arguments: list[str] | None) -> int:
    import click

    from whet.cli.commands import root

    output = sys.stdout
    given = sys.argv[1:] if arguments is None else arguments
    try:
        left_with = root.main(args=arguments, prog_name="whet", standalone_mode=False)
        return left_with if isinstance(left_with, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort as error:
        return _report(interrupted(error.__cause__))
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    except WhetError as error:
        return _report(error, given)
    except SystemExit as error:
        # If the reader of the output has closed it (`whet runs | head`), click replaces the stream and exits with 1,
        # although nothing failed.
        return int(error.code or 0) if sys.stdout is output else 0
    except BrokenPipeError:
        # The reader of the output has closed it (`whet runs | head`): nothing more can be printed.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 0
    except MemoryError:
        trains = given[:1] == ["train"]
        hint = "Try a smaller --batch-size or --max-length." if trains else "Close other programs, or give fewer rows."
        return _report(EnvironmentFault("Out of memory.", hint))
    except RuntimeError as error:
        from whet.utils.background import REFUSED

        if REFUSED not in str(error):
            raise
        return _report(EnvironmentFault("The system allows no more threads.", "Raise its limit on them or on memory."))
    except OSError as error:
        if NO_TEMPORARY_FOLDER in str(error):
            return _report(EnvironmentFault(f"{error.strerror}.", "Set TMPDIR to a folder that can be written."))
        where = f" {error.filename!r}" if error.filename else ""
        return _report(EnvironmentFault(f"The system refused{where}: {error.strerror or error}."))
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of the tokenizers library; it is no Exception
            raise
        return _report(ArtifactError(f"The model's tokenizer gave up: {error}.", "Save it again from its source."))


def _report(error: WhetError, arguments: Sequence[str] = ()) -> int:
    _exit_on_next_signal()
    if os.environ.get("WHET_DEBUG"):
        import traceback

        traceback.print_exc()
    rank = global_rank()
    # Only rank 0 prints that the run was interrupted.
    first_to_say = rank == 0 and isinstance(error, Interrupted)
    if (error.copied and not first_to_say) or (rank and error.rank is None):
        return error.exit_code  # another rank prints it
    who = f"whet (rank {rank})" if rank else "whet"
    _say(f"{who}: {error.message}")
    if error.hint:
        _say(f"      {error.hint}")
    if error.go_on:
        from whet.cli.going_on import command_to_go_on

        if command := command_to_go_on(arguments, error.go_on):
            _say(f"      Go on: {command}")
    return error.exit_code


def _say(line: str) -> None:
    import click

    # The stream may be closed, or its disk full; the exit code still counts.
    with contextlib.suppress(OSError):
        click.echo(neutral(line), err=True)


def interrupted(error: BaseException | None) -> Interrupted:
    """Return the message for a signal that arrived while no run had anything to save."""
    name = str(error) if isinstance(error, KeyboardInterrupt) else ""
    return Interrupted(f"Interrupted: {name or 'SIGINT'} was received.", "Run the same command again.")


def install_signal_handlers() -> None:
    """Raise where a signal arrives; a run sets its own handlers while work could be lost."""
    sys.unraisablehook = resend_lost_signal(sys.__unraisablehook__)
    _wait_for_the_first()


def _wait_for_the_first() -> None:
    for number in SIGNALS:
        signal.signal(number, _leave)


def _exit_on_next_signal() -> None:
    """End the process at the next signal, because the command is already ending."""
    # A launcher forwards signals that the terminal has already sent to all processes: that is no second signal.
    second = signal.SIG_IGN if is_launched() else _leave_now
    for number in SIGNALS:
        if signal.getsignal(number) is _leave:
            signal.signal(number, second)


def _leave(number: int, frame: FrameType | None) -> None:
    if defer_during_torch_import(number, frame):
        return
    _exit_on_next_signal()
    if is_launched() and sys.argv[1:2] == ["train"]:
        remember(number)
        return
    raise SignalArrived(number, _wait_for_the_first)


def _leave_now(number: int, frame: FrameType | None) -> None:
    os._exit(Interrupted.exit_code)


def entry() -> NoReturn:
    try:
        install_signal_handlers()
        load_as_command()
        _end_with_the_launcher()
        _open_closed_streams()
        guard_output()
        code = main()
        _exit_on_next_signal()
    except KeyboardInterrupt as error:  # before main, or between two of its lines
        code = _report(interrupted(error))
    except Exception:  # an internal error
        _exit_on_next_signal()
        sys.excepthook(*sys.exc_info())
        code = 1
    # Python is not shut down normally: threads that still load something, or that belong to torch, sometimes abort
    # there.
    os._exit(_for_caller(_finished(code)))


def _open_closed_streams() -> None:
    """Replace streams that the caller has closed (`whet train … >&-`); output to them is discarded."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a file name need not be valid text, nor fit the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")


def _finished(code: int) -> int:
    """Wait for the libraries' threads, run exit handlers and flush the output, as Python would; after an interruption
    do not wait for downloads."""
    import threading

    with contextlib.suppress(Exception):
        if code != Interrupted.exit_code:
            threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            pass  # nothing reads it
        except OSError:
            code = code or EnvironmentFault.exit_code
    return code


def _end_with_the_launcher() -> None:
    """Make the kernel end this process if its launcher is killed; only Linux supports it."""
    if is_launched() and sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM, 0, 0, 0)


def _for_caller(code: int) -> int:
    from whet.cli.processes import exit_code

    return exit_code(code)
