"""The bar under which `coolsd-trt build` works."""

from __future__ import annotations

from types import TracebackType

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from .console import stderr


class BuildProgress:
    """Stage, share of the weights that is written, time left; on stderr, and only if that is a terminal."""

    def __init__(self) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)
        # No total yet: the bar only moves, while files are hashed.
        self._task = self._bar.add_task("build", total=None, count="")

    def __enter__(self) -> BuildProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stage(self, name: str) -> None:
        self._bar.update(self._task, description=f"build: {name}")

    def weights(self, done: int, total: int) -> None:
        count = f"{done / 1e6:.1f} of {total / 1e6:.1f} M weights"
        self._bar.update(self._task, completed=done, total=total, count=count)
