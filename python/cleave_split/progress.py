"""Shows the progress of a run: a bar in a terminal or a notebook."""

from __future__ import annotations

import html
import sys
import time
from typing import Any, Dict, Mapping, Optional

Event = Mapping[str, Any]

_REFRESH_SECONDS = 0.2
_BAR_CELLS = 24


def _notebook_display():
    """IPython's display function in a notebook; None elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not shell.has_trait("kernel"):
        return None
    from IPython.display import display  # type: ignore[import-not-found]

    return display


class ProgressBar:
    """Draws a run's events. Shows nothing if stderr is not a terminal and there is no notebook."""

    def __init__(self) -> None:
        self._display = _notebook_display()
        self._is_terminal = self._display is None and sys.stderr.isatty()
        self._handle: Optional[Any] = None
        self._drawn_at = 0.0
        self._step: Dict[str, Any] = {}
        self._epoch: Dict[str, Any] = {}
        self._started = time.monotonic()
        self._first_step: Optional[int] = None

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind == "step":
            self._step = dict(event)
            if self._first_step is None:
                self._first_step = int(event["step"])
                self._started = time.monotonic()
        elif kind == "epoch":
            self._epoch = dict(event)
        if not self._step:
            return
        now = time.monotonic()
        if kind == "step" and now - self._drawn_at < _REFRESH_SECONDS:
            return
        self._drawn_at = now
        self._draw(is_end=kind in ("done", "failed"))

    def text(self) -> str:
        """Such as "step 470 of 1876  25 %  loss 0.3120  top1 88.91 %  eval top1 88.10 %  6872 samples/s  41 s left"."""
        step, steps = int(self._step["step"]), int(self._step["steps"])
        words = [f"step {step} of {steps}", f"{self.share():.0%}".replace("%", " %")]
        words += _scores("", self._step, ("loss", "top1"))
        words += _scores("eval ", {key[5:]: value for key, value in self._epoch.items() if key.startswith("eval_")}, ("loss", "top1"))
        rate = self._step.get("images_per_second")
        if rate:
            words.append(f"{rate:.0f} samples/s")
        done = step - (self._first_step or step)
        if done > 0 and step < steps:
            left = (time.monotonic() - self._started) / done * (steps - step)
            words.append(f"{left:.0f} s left" if left < 120 else f"{left / 60:.0f} min left")
        return "  ".join(words)

    def share(self) -> float:
        return min(1.0, int(self._step["step"]) / max(1, int(self._step["steps"])))

    def _draw(self, is_end: bool) -> None:
        if self._display is not None:
            from IPython.display import HTML  # type: ignore[import-not-found]

            shown = HTML(f'<progress max="1" value="{self.share():.4f}" style="width: 20em"></progress> {html.escape(self.text())}')
            if self._handle is None:
                self._handle = self._display(shown, display_id=True)
            else:
                self._handle.update(shown)
        elif self._is_terminal:
            full = round(self.share() * _BAR_CELLS)
            sys.stderr.write(f"\r\x1b[K{'█' * full}{'░' * (_BAR_CELLS - full)} {self.text()}" + ("\n" if is_end else ""))
            sys.stderr.flush()


def _scores(prefix: str, values: Event, names: "tuple[str, ...]") -> "list[str]":
    words = []
    for name in names:
        value = values.get(name)
        if value is not None:
            words.append(f"{prefix}{name} " + (f"{100 * value:.2f} %" if name == "top1" else f"{value:.4f}"))
    return words
