"""Prefect's words and Prefect's wire: what the target, the source and the importer need of it.

`schedules` maps Prefect's schedules to our words, and is pure; `client` makes one call of its REST API.
Nothing of Prefect is imported.
"""

from __future__ import annotations

CONNECTION_KEYS = ("url", "api_key", "auth_string", "headers", "timeout", "verify")
"""The fields that say how Prefect is reached: those of a target of kind `prefect`, and of the source."""

AUTO_SCHEDULED = "auto-scheduled"
"""The tag that Prefect's own scheduler gives to its flow runs; its UI and its users know it."""
