"""The measurements of the generation engine alone; ``benchmarks/generation.py`` runs them."""

from __future__ import annotations
