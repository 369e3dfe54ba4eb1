"""``python -m qeff``: the command line, the same as the ``qeff`` script."""

from __future__ import annotations

from qeff.apps.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
