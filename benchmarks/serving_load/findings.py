"""What a check of a server found, and the numbers that the server gives about itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from qeff.apps.load.client import Address, request


@dataclass
class Finding:
    """What a check saw, and what did not hold."""

    name: str
    seen: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str) -> None:
        """Note a failure where something does not hold."""
        if not holds:
            self.failures.append(what)

    def lines(self) -> list[str]:
        """For the report."""
        seen = "; ".join(f"{name} {value}" for name, value in self.seen.items())
        state = "holds" if not self.failures else f"FAILS: {'; '.join(self.failures)}"
        return [f"### {self.name}: {state}", "", seen, ""]


async def read_metrics(address: Address) -> dict[str, float]:
    """The numbers of /metrics, those of all models added up."""
    async with request(address, "GET", "/metrics") as reply:
        text = (await reply.read()).decode()
    found: dict[str, float] = {}
    for name, number in re.findall(r"^([\w:]+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
        found[name] = found.get(name, 0.0) + float(number)
    return found
