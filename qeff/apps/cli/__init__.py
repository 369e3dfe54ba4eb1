"""The command line: ``main.py`` and one module per command, found by file name.

A command module has ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``, and imports what
it needs when it runs, so that ``--help`` and a mistyped option are answered at once. Where it has
``WORDS``, those are second words that stand for a command of their own, each with its module.
"""
