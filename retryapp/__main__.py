"""``retryapp`` and ``python -m retryapp``: the command line."""

import sys


def main() -> None:
    try:
        from retryapp.cli.main import main as run
    except KeyboardInterrupt:  # loading it takes a good part of a second
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
