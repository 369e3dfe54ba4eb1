"""A load generator for servers that speak OpenAI's protocol: ``qeff bench serve``.

Makes prompts, sends them at a rate or so many at once, and says what clients saw. Knows nothing of
the server behind the address.
"""
