"""`python -m graphwright` is the command `graphwright`."""

from graphwright.commands.cli import main

if __name__ == "__main__":
    main()
