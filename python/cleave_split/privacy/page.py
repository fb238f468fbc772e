"""The page of an audit: one file, without scripts and without anything to load."""

from __future__ import annotations

import base64
import dataclasses
import html
import struct
import zlib
from typing import Any, Callable, List, Mapping, Optional, Sequence

import torch

_STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%;font-size:13px}th,td{text-align:left;padding:.3rem .5rem;border-bottom:1px solid #ddd;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}.bar{background:#e8e8e8;width:6rem;height:.7rem}.bar i{display:block;height:100%;background:#b3261e}
figure{margin:1rem 0}figure img{image-rendering:pixelated;width:48px;height:48px;margin:1px}figcaption{font-size:13px}h2{margin-top:2rem}"""


@dataclasses.dataclass
class Figure:
    """Originals and their reconstructions, a row per sample: images, rows of numbers, or token ids, which `decode` turns into text."""

    row: Mapping[str, Any]  # of the attack
    originals: torch.Tensor
    reconstructions: torch.Tensor
    decode: Optional[Callable[[List[int]], str]] = None


def render(result: Mapping[str, Any], figures: Sequence[Figure]) -> str:
    """The page for the content of audit.json."""
    parts = [
        "<h1>What the server learns</h1><p>Advantage: 0 is what a guess without the traffic achieves, 1 is exact recovery. These are the attacks of "
        "this suite: another attack may learn more.</p>",
        _table(("Recording", "Flow", "Codec", "Epochs", "Worst advantage", "Distance correlation", "Certified noise", "Verdict"), map(_flow, result["flows"])),
    ]
    if result["across_epochs"]:
        parts += ["<h2>Across epochs</h2><p>The worst advantage with the traffic of the first epoch, of the last one, and of all together.</p>",
                  _table(("Recording", "Flow", "Codec", "First", "Last", "All"), map(_epochs, result["across_epochs"]))]  # fmt: skip
    parts += ["<h2>Attacks</h2>",
              _table(("Recording", "Flow", "Epochs", "Attack", "Finds", "Knows", "Metric", "Value", "95 % interval", "Baseline", "Advantage"),
                     map(_row, result["rows"]))]  # fmt: skip
    if figures:
        parts += ["<h2>Originals above, reconstructions below</h2>", *map(_figure, figures)]
    return (f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>What the server learns</title><style>{_STYLE}</style>{"".join(parts)}</html>\n')


def _table(heads: Sequence[str], rows: Any) -> str:
    return f"<table><tr>{''.join(f'<th>{head}' for head in heads)}</tr>{''.join(rows)}</table>"


def _text(*values: Any) -> str:
    return "".join(f"<td>{html.escape(str(value))}" for value in values)


def _number(value: Optional[float]) -> str:
    return f'<td class="n">{"" if value is None else f"{value:.3f}"}'


def _bar(share: Optional[float]) -> str:
    if share is None:
        return "<td>not attacked"
    return f'<td><div class="bar"><i style="width:{100 * share:.0f}%"></i></div>{share:.2f}'


def _flow(flow: Mapping[str, Any]) -> str:
    return (f"<tr>{_text(flow['recording'], flow['flow'], flow['codec'], flow['epochs'])}{_bar(flow['worst'])}{_number(flow.get('distance_correlation'))}"
            f"{_number(flow.get('certified_noise'))}{_text(flow['verdict'])}</tr>")  # fmt: skip


def _epochs(flow: Mapping[str, Any]) -> str:
    return f"<tr>{_text(flow['recording'], flow['flow'], flow['codec'])}{''.join(_bar(flow[kind]) for kind in ('first', 'last', 'all'))}</tr>"


def _row(row: Mapping[str, Any]) -> str:
    names = _text(*(row[key] for key in ("recording", "flow", "epochs", "attack", "finds", "knows", "metric")))
    return (f'<tr>{names}{_number(row["value"])}<td class="n">{row["low"]:.3f} to {row["high"]:.3f}{_number(row["baseline"])}'
            f"{_bar(row['advantage'] if row['succeeds'] else 0.0)}</tr>")  # fmt: skip


# ---- Reconstructions ----


def _figure(figure: Figure) -> str:
    row = figure.row
    caption = html.escape(f"{row['recording']}, {row['flow']}, epochs: {row['epochs']}, {row['attack']}: {row['metric']} {row['value']:.2f}")
    show = _images if figure.originals.dim() == 4 and figure.originals.shape[1] in (1, 3) else _lines
    return f"<figure><figcaption>{caption}</figcaption>{show(figure)}</figure>"


def _images(figure: Figure) -> str:
    low, high = figure.originals.min(), figure.originals.max()
    lines = ["".join(_image((each - low) / (high - low).clamp_min(1e-9)) for each in tensor) for tensor in (figure.originals, figure.reconstructions)]
    return "<br>".join(lines)


def _lines(figure: Figure) -> str:
    """Of three samples: the text, the token ids or the first numbers."""

    def line(values: torch.Tensor) -> str:
        if values.is_floating_point():
            return " ".join(f"{value:.3g}" for value in values.flatten()[:12].tolist())
        ids = [each for each in values.tolist() if each >= 0]
        return figure.decode(ids) if figure.decode else " ".join(map(str, ids))

    pairs = zip(figure.originals[:3], figure.reconstructions[:3])
    return _table((), (f"<tr><td>{html.escape(line(original))}<br>{html.escape(line(guess))}</tr>" for original, guess in pairs))


def _image(values: torch.Tensor) -> str:
    """[channels, height, width] in [0, 1] as a PNG."""
    channels, height, width = values.shape
    pixels = (values.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    data = b"".join(b"\0" + line.tobytes() for line in pixels)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
