"""``python -m retryapp``: the command line."""

from retryapp.cli.main import main

if __name__ == "__main__":
    main()
