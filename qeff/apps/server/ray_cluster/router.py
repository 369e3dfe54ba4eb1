"""Which worker answers a request: Ray's own choice by common beginnings of prompts.

The class is the one that Ray offers as ``ray.serve.llm.request_router.PrefixCacheAffinityRouter``;
that name can be imported only beside an engine of Ray's choice, and the class needs none.
"""

from __future__ import annotations

from typing import Any

from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import (
    PrefixCacheAffinityRouter,
)


class PrefixRouter(PrefixCacheAffinityRouter):
    """Ray's router, for a set of replicas that changes under its hands."""

    async def _prefix_match_best_replicas(
        self, pending_request: Any, candidate_replicas: Any
    ) -> Any:
        """Replicas that know the prompt's beginning; none where they are not known here yet.

        All routers share one tree of prompts, and another may have put a replica there that this
        one has not heard of. A request whose choice fails would never be answered.
        """
        try:
            return await super()._prefix_match_best_replicas(pending_request, candidate_replicas)
        except KeyError:
            return [[]]  # Ray then takes the shorter queue of two
