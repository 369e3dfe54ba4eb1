"""The shared nouns: errors, formats, tensors, specs, options, progress.

Takes nothing, gives the words that every other room uses. Imports nothing of ours and no heavy
library.
"""
