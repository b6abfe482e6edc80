"""The commands, one file a subject. `cli/main.py` says which is where."""
