"""Servers under load: ours beside another, and what must hold whatever clients do."""
