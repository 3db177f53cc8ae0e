"""`python -m stoker`."""

from stoker.commands import main

main()
