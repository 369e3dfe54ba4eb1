"""Evaluate: how well a container predicts a text, and how far it is from the float model.

Three phases run side by side: the model in float, the container's weights in float arithmetic, and
the container itself. Takes containers and token ids; knows neither options nor terminals.
"""
