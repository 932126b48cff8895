"""A callback that ends a fit, as a kill or Ctrl-C would."""

from collections.abc import Callable


class StoppedError(Exception):
    pass


def stop_at(count: int, counted: type | Callable[[object], object]) -> Callable[[object], None]:
    """Return a callback that raises StoppedError at so many events of a type, or that a function says yes to."""
    left = count

    def stop(event: object) -> None:
        nonlocal left
        left -= isinstance(event, counted) if isinstance(counted, type) else bool(counted(event))
        if left == 0:
            raise StoppedError

    return stop
