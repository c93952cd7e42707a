"""`python -m whet` is the command `whet`."""

from whet.cli import entry

if __name__ == "__main__":
    entry()
