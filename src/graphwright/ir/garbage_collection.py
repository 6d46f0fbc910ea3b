"""Keep the garbage collector out while many nodes are made."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def garbage_collection_paused() -> Generator[None]:
    """Keep the garbage collector out while many objects are made that all stay: it would look at each of them again and again.

    >>> with garbage_collection_paused():
    ...     gc.isenabled()
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
