"""The everyday statements of both databases, as scripts (`script.py`), by what they do.

The hot statements (lease, apply, claim, settle, next due) are not here: each database has its own.
"""
