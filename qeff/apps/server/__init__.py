"""The server: models behind the protocols that programs speak, over HTTP.

Stands on the generation engine alone. Imports with the extra ``serve``; nothing else of this
project imports it.
"""
