"""What every command shares with the person at the terminal: option parsing, notes, bars, errors.

Knows no models. A command takes its parser from here and gets a screen to speak through.
"""
