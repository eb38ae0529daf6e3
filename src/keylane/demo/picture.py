"""The run over time as a PNG: throughput, requests in flight, and what is left, above each other on one time axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.demo.extras import require

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from keylane.demo.observer import Sample

INK, GRID, PAPER = "#22303c", "#e3e8ec", "#ffffff"
BLUE, ORANGE, GREEN = "#2b7bba", "#e07b39", "#3a9d78"

SMOOTHING_S = 0.7
"""Throughput is shown over windows of this length: answers arrive in bursts of the service's latency."""


def save_picture(path: Path, samples: Sequence[Sample], *, title: str, subtitle: str) -> None:
    """Write the PNG (about 960 × 660 pixels). Raises `PeerError` when matplotlib is not installed."""
    require("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and may look for a display

    figure = Figure(figsize=(9.6, 6.6), dpi=100, facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2, 2]})
    figure.text(0.075, 0.955, title, fontsize=15, fontweight="bold", color=INK)
    figure.text(0.075, 0.918, subtitle, fontsize=10, color=INK, alpha=0.75)
    figure.subplots_adjust(left=0.075, right=0.975, top=0.855, bottom=0.075, hspace=0.28)
    _panel(axes[0], *_throughput(samples), BLUE, "records a second")
    seconds = [sample.seconds for sample in samples]
    _panel(
        axes[1], seconds, [sample.in_flight for sample in samples], ORANGE, "requests in flight at the service (peaks)"
    )
    lags = [sample.to_do.lag for sample in samples]
    _panel(axes[2], seconds, [sample.to_do.remaining for sample in samples], GREEN, "records left, by the offset maps")
    axes[2].plot(seconds, lags, color=INK, linewidth=1.2, linestyle=(0, (2, 2)), alpha=0.8)
    axes[2].set_ylim(0, max([*lags, 1]) * 1.18)
    axes[2].set_title("lag: log end less committed offset (dashed)", loc="right", fontsize=9, color=INK, pad=5)
    axes[2].set_xlabel("seconds", color=INK, fontsize=9)
    axes[2].set_xlim(0, max(seconds, default=1.0) or 1.0)
    figure.savefig(path, facecolor=PAPER)


def _throughput(samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Answers a second between each sample and the first one at least `SMOOTHING_S` before it."""
    times, rates = [], []
    start = 0
    for sample in samples:
        while start + 1 < len(samples) and sample.seconds - samples[start + 1].seconds >= SMOOTHING_S:
            start += 1
        elapsed = sample.seconds - samples[start].seconds
        times.append(sample.seconds)
        rates.append((sample.answered - samples[start].answered) / elapsed if elapsed > 0 else 0.0)
    return times, rates


def _panel(axis: Any, times: Sequence[float], values: Sequence[float], color: str, label: str) -> None:
    axis.set_facecolor(PAPER)
    axis.fill_between(times, values, color=color, alpha=0.16, linewidth=0)
    axis.plot(times, values, color=color, linewidth=1.8, solid_capstyle="round")
    axis.set_title(label, loc="left", fontsize=10, color=color, fontweight="bold", pad=5)
    axis.set_ylim(0, max([*values, 1]) * 1.18)
    axis.grid(axis="y", color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=INK, labelsize=8.5, length=0)
    axis.yaxis.set_major_formatter(lambda value, _position: f"{value:,.0f}")
    axis.yaxis.set_major_locator(_few_ticks())
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(GRID)
    if values:
        peak = max(range(len(values)), key=values.__getitem__)
        at_right = times[peak] > 0.85 * times[-1]
        axis.annotate(
            f"{values[peak]:,.0f}",
            (times[peak], values[peak]),
            xytext=(-4 if at_right else 4, 4),
            textcoords="offset points",
            ha="right" if at_right else "left",
            fontsize=9,
            fontweight="bold",
            color=color,
        )


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=4, integer=True)
