"""`python -m kappaone` is the command `kappaone`."""

from kappaone.cli.main import main

if __name__ == "__main__":
    main()
