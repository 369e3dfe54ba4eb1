"""A server whose replicas run on Ray Serve, on one machine or on many.

Requests come in by Ray's proxies, go through an ingress to a worker that knows their beginning, and
are answered there by the same application as everywhere. ``forwarded`` and ``driving`` know nothing
of Ray.
"""
