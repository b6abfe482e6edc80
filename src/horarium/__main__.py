"""`python -m horarium` is `horarium`."""

from horarium.cli.main import main

main()
