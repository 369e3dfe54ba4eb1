"""OpenAI's protocol: each file is one route and exports ``router``."""
