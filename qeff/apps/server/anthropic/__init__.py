"""Anthropic's routes: messages and the counting of their tokens."""
