"""What callers and tests of deep_ep import from its `utils`."""

from .event import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
