"""Engines side by side: what ``benchmarks/cpu.py`` runs, and how it reads the results.

``worker.py`` measures one engine in a process of its own, under that engine's own interpreter, so
this package imports nothing but the standard library and numpy at its top.
"""

from __future__ import annotations
