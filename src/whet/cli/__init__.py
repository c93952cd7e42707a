"""The command line: one thin function per command, loaded when it is called.

`app` runs a command and turns errors into one line and an exit code; `commands` lists the commands. Imports anything,
lazily; only `__main__` and `tools/selftest/fork_server` import it.
"""

from whet.cli.app import entry, main

__all__ = ["entry", "main"]
