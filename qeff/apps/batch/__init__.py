"""Batch: a file of requests in OpenAI's format to a file of answers, resumable at any moment.

The requests go through the routes of the server, in this process or over the network. Knows
nothing of what the requests mean.
"""
