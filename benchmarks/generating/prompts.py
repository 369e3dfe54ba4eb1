"""The prompts of the speculation benchmark: edits of a text, a mixed set, and code."""

from __future__ import annotations

from pathlib import Path

TEXT = Path(__file__).resolve().parent.parent / "text.txt"

CODE = '''def read_table(path):
    """Read a table of numbers, one row for each line."""
    rows = []
    with open(path) as file:
        for line in file:
            line = line.strip()
            if line and not line.startswith("#"):
                rows.append([float(word) for word in line.split(",")])
    return rows


def column_means(rows):
    """The mean of each column."""
    if not rows:
        return []
    totals = [0.0] * len(rows[0])
    for row in rows:
        for index, value in enumerate(row):
            totals[index] += value
    return [total / len(rows) for total in totals]
'''


def edits() -> dict[str, str]:
    """Prompts whose answers repeat much of what they were given."""
    paragraphs = TEXT.read_text().strip().split("\n\n")
    first = paragraphs[0][:700]
    return {
        "repeat a text": f"Repeat the following text word for word.\n\n{first}",
        "correct a text": f"Correct the spelling of this text and write it again.\n\n{first}",
        "summarise": f"Summarise this text, with quotes.\n\n{' '.join(paragraphs)[:1500]}",
    }


def mixed() -> dict[str, str]:
    """Prompts of many kinds, most of which leave nothing to copy."""
    return {
        "question": "Why is the sky blue?",
        "story": "Write a short story about a lighthouse keeper who finds a letter.",
        "list": "List ten animals that live in the sea, each with one sentence.",
        "recipe": "How do I bake bread?",
        "explain": "Explain to a child how a computer adds two numbers.",
        "letter": "Write a letter to a friend about moving to another town.",
        **edits(),
    }


def code() -> dict[str, str]:
    """Tasks of programming."""
    return {
        "add a parameter": "Add a parameter `separator` to read_table and use it. Write the whole"
        f" program again.\n\n```python\n{CODE}```",
        "write a function": "Write a Python function that merges two sorted lists into one sorted"
        " list, with a docstring and type hints.",
        "write a class": "Write a Python class for a queue with a maximal size: push, pop, peek,"
        " __len__ and __iter__, each with a docstring.",
        "write tests": f"Write pytest tests for this module.\n\n```python\n{CODE}```",
    }
