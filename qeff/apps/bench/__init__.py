"""Bench: how fast a container runs here, and how near that is to what the machine can do.

Figures come from fresh processes that have loaded nothing but the run half. Takes a container;
knows nothing of how it was made.
"""
