"""The command `counterfoil`. Importing it is light; `main` imports what the command needs."""

import importlib.util
import sys
from typing import Final

__all__ = ["main"]

NEEDED: Final = ("typer", "rich")
"""What the extra `cli` brings."""


def main() -> None:
    """Run the command with the arguments of the process, and end the process with its exit code.

    Raises:
        SystemExit: always; with 2 where the extra ``cli`` is not installed, and a word on what to type.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"counterfoil: the command needs {' and '.join(missing)}, not installed for {sys.executable}; "
            "type: pip install 'counterfoil[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(2)
    from counterfoil.doors.cli.app import app  # light until here, and absent without the extra

    try:
        app()
    except KeyboardInterrupt:
        print("counterfoil: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
