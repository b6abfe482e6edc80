"""Horarium: a durable schedule service. One run a slot, nothing lost, nothing silent."""

__version__ = "0.1.0"
