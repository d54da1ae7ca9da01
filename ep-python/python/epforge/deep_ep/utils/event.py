"""Events of streams, as deep_ep hands them around. In the emulator there is nothing to wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._torch import current_stream, has_gpu, require


class EventHandle:
    """A point in the stream that is current where it is made."""

    def __init__(self) -> None:
        self.event = require().cuda.Event() if has_gpu() else None
        if self.event is not None:
            self.event.record(current_stream())

    def current_stream_wait(self) -> None:
        """Puts the current stream behind it."""
        if self.event is not None:
            current_stream().wait_event(self.event)


class EventOverlap:
    """An event, and what is to be done once a stream has been put behind it."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        self.event = event
        # They live until the event is gone.
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Callable[[], Any] | None = None
        self._release_handle_by_call = False

    def current_stream_wait(self, release_handle: bool = False) -> Any:
        """Puts the current stream behind the event; gives what the hook gives."""
        if self.event is None:
            raise ValueError("there is no event: the call was made without `async_finish`")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if release_handle:
            self.event = None
        return hook() if hook else None

    def wait(self) -> Any:
        """As `current_stream_wait`."""
        return self.current_stream_wait()

    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None:
        """Has something called, once, after the next wait."""
        if self.hook_after_wait is not None:
            raise ValueError("the event has a hook already")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        self._release_handle_by_call = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: object) -> None:
        if self.event is not None:
            self.current_stream_wait(self._release_handle_by_call)
        self._release_handle_by_call = False
