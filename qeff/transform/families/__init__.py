"""What one model family needs besides the general hooks.

A file is called ``<model_type>.py`` and has ``hooks(model, trace)``, a context manager. Most
families need no file; one holds only the difference.
"""
