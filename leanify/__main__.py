"""``python -m leanify``: the console script."""

from leanify.cli import main

if __name__ == "__main__":
    main()
