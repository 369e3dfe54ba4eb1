"""A conversation with a model: what was said, and how the next answer is asked for.

Knows nothing of terminals; the command ``qeff chat`` is one way to show it.
"""
