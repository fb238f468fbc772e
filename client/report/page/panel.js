// One chart on the page: a card with heading, legend, dygraph and a button to download its numbers as
// CSV.

// Okabe and Ito's colour-blind-safe palette, in order of best contrast.
const palettes = {
  light: ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#b07d00', '#7d8590'],
  dark: ['#56b4e9', '#e69f00', '#2fc69a', '#cc79a7', '#f0e442', '#e8743b', '#a8b1bc'],
};
const dashes = [null, [8, 4], [2, 3], [10, 3, 2, 3]];
const darkness = window.matchMedia('(prefers-color-scheme: dark)');

function colour(index) {
  const palette = darkness.matches ? palettes.dark : palettes.light;
  return palette[index % palette.length];
}
// Lines beyond the palette's size also differ in their dashes.
function dash(index) {
  return dashes[Math.floor(index / palettes.light.length) % dashes.length];
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'class') made.className = value; else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// The swatch of line `index` in a legend: its colour and its dashes at half length.
function swatch(index) {
  const made = element('i', { class: 'swatch' });
  made.style.background = colour(index);
  const stops = [];
  let at = 0;
  for (const length of dash(index) || []) {
    const end = at + length / 2;
    stops.push((stops.length % 2 ? 'transparent ' : colour(index) + ' ') + at + 'px ' + end + 'px');
    at = end;
  }
  if (stops.length > 0) made.style.background = 'repeating-linear-gradient(90deg, ' + stops.join(', ') + ')';
  return made;
}

function csvCell(value) {
  const text = value === null || value === undefined ? '' : String(value);
  return /[",\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

function download(name, rows) {
  const text = rows.map((row) => row.map(csvCell).join(',')).join('\n') + '\n';
  const url = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
  const link = element('a', { href: url, download: name + '.csv' });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function csvButton(what, name, rows) {
  const button = element('button', { type: 'button', class: 'csv', 'aria-label': what + ' as CSV' }, 'CSV');
  button.addEventListener('click', () => download(name, rows()));
  return button;
}

// Ticks at round values for a logarithmic axis that covers less than a decade.
function ticksWithin(unit, low, high) {
  const from = 10 ** low, span = 10 ** high - from;
  const power = 10 ** Math.floor(Math.log10(span / 4));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= span / 4) * power;
  const ticks = [];
  for (let k = Math.ceil(from / step); k * step <= from + span; ++k) {
    if (k > 0) ticks.push({ v: Math.log10(k * step), label: unit.tick(k * step) });
  }
  return ticks;
}

// Ticks at powers of ten, with 2 and 5 in between if there is room. The axis shows logarithms.
function decades(unit, pixelsPerLabel) {
  return (low, high, pixels) => {
    const between = pixels / Math.max(high - low, 0.1) > 3.4 * pixelsPerLabel ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); ++power) {
      for (const factor of between) {
        const v = power + Math.log10(factor);
        if (v >= low && v <= high) ticks.push({ v, label: unit.tick(factor * 10 ** power) });
      }
    }
    return ticks.length < 2 && high > low ? ticksWithin(unit, low, high) : ticks;
  };
}

// One finger scrolls the page; two fingers zoom.
function interaction() {
  const model = { ...Dygraph.defaultInteractionModel };
  for (const [event, handler] of Object.entries(model)) {
    if (!event.startsWith('touch')) continue;
    model[event] = (touch, graph, context) => {
      if (event === 'touchstart' && touch.touches.length < 2) return;
      if (event !== 'touchstart' && !context.initialTouches) return;
      handler(touch, graph, context);
    };
  }
  return model;
}

class Panel {
  // spec: id, title, note, unit, log (initially), stacked, zero, pad (pixels beside the points),
  // histogram (unit of the horizontal axis). `redraw` is called after the user has changed the scale;
  // without it, the scale is fixed.
  constructor(spec, group, redraw) {
    this.spec = spec;
    this.group = group;
    this.log = Boolean(spec.log);
    this.selected = null;    // the row that the keyboard has selected
    this.valueRange = null;  // null: automatic
    this.marks = [];         // vertical lines: [{x, isSolid, text, index of the colour, or null}]
    this.legend = element('p', { class: 'legend', 'aria-hidden': 'true' });
    this.canvas = element('div', { class: 'chart', role: 'img', tabindex: '0',
                                   'aria-label': spec.title + ' (arrow keys: values; plus and minus: zoom; Escape: reset)' });
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    this.canvas.addEventListener('blur', () => this.point(null));
    this.xTitle = element('p', { class: 'x-title muted' });
    const head = element('div', { class: 'card-head' }, element('h3', {}, spec.title),
                         ...(redraw && !spec.stacked && !spec.histogram ? [this.logButton(redraw)] : []), csvButton(spec.title, 'cleave-' + spec.id, () => this.csv()));
    this.note = element('p', { class: 'note muted' }, spec.note || '');
    this.card = element('figure', { class: spec.wide ? 'card across' : 'card', id: 'chart-' + spec.id },
                        head, this.note, this.legend, this.canvas, this.xTitle);
  }

  logButton(redraw) {
    const button = element('button', { type: 'button', class: 'log', 'aria-pressed': String(this.log),
                                       'aria-label': this.spec.title + ' on a logarithmic scale' }, 'Log');
    button.addEventListener('click', () => {
      this.log = !this.log;
      button.setAttribute('aria-pressed', String(this.log));
      redraw();
    });
    return button;
  }

  // The position of a value on the vertical axis; null if it has none.
  height(value) {
    if (!this.log || Number.isNaN(value)) return value;
    return value > 0 ? Math.log10(value) : null;
  }

  // lines: [{label, index, points, band, dots, summary}]; axis: an entry of `axes` in format.js
  show(lines, axis) {
    const labels = ['x', ...lines.map((line) => line.label)];
    this.lines = lines;
    for (const line of lines) line.at = new Map(line.points.map((point) => [point.x, point]));
    this.axis = axis;
    this.xTitle.textContent = axis.title;
    this.banded = !this.spec.stacked && lines.some((line) => line.band);
    const y = (value) => this.height(value);
    // If a logarithmic scale cannot show an edge of the band, that edge is drawn at the mean.
    const band = (point) => {
      const mean = y(point.mean);
      return mean === null ? null : [y(point.min) ?? mean, mean, y(point.max) ?? mean];
    };
    const value = this.banded ? band : (point) => y(point.mean);
    const rows = joinPoints(lines.map((line) => line.points), value);
    const kept = this.selected === null || !this.graph ? null : this.graph.getValue(this.selected, 0);
    const isEmpty = rows.every((row) => row.slice(1).every((cell) => cell === null));
    this.card.classList.toggle('empty', isEmpty);
    if (isEmpty) {
      this.drop();
      this.legend.textContent = rows.length > 0 ? 'No value is above 0.' : this.spec.none || 'No data was recorded for this chart.';
      return;
    }
    const options = { file: rows, labels, ...this.look() };
    if (this.graph && this.graph.getLabels().join('\n') === labels.join('\n') && this.wasBanded === this.banded) {
      this.graph.updateOptions(options);
    } else {
      this.drop();
      delete options.file;
      this.graph = new Dygraph(this.canvas, rows, { ...this.fixed(), ...options });
      if (this.group) this.group.add(this);
    }
    this.wasBanded = this.banded;
    this.showLegend(null);
    this.selected = kept === null ? null : rows.findIndex((row) => row[0] === kept);
    if (this.selected === -1) this.selected = null;
    if (this.selected !== null) this.select(kept);
  }

  // Appends text to the chart's note.
  remark(text) {
    this.note.textContent = [this.spec.note, text].filter(Boolean).join(' ');
  }

  drop() {
    if (this.graph) this.graph.destroy();
    this.graph = null;
  }

  // Options that depend on the colour scheme, the axis and the data.
  look() {
    const style = getComputedStyle(document.body);
    const series = {};
    this.lines.forEach((line) => {
      series[line.label] = {
        color: colour(line.index),
        strokePattern: dash(line.index),
        drawPoints: Boolean(line.dots),
        pointSize: line.dots ? 4 : 2.5, // without dots: of a point that has no neighbours
        strokeWidth: this.axis.apart ? 0 : 1.6,
      };
    });
    return {
      series,
      includeZero: Boolean(this.spec.zero) && !this.log,
      colors: this.lines.map((line) => colour(line.index)),
      gridLineColor: style.getPropertyValue('--grid').trim(),
      axisLineColor: style.getPropertyValue('--grid').trim(),
      customBars: this.banded,
      valueRange: this.range(),
      axes: this.axesOptions(),
    };
  }

  // The range of the vertical axis; null: automatic.
  range() {
    return this.log ? null : this.valueRange;
  }

  axesOptions() {
    const unit = units[this.spec.unit];
    const y = { axisLabelWidth: 66, axisLabelFormatter: unit.tick, pixelsPerLabel: 32,
                ticker: this.log ? decades(unit, 24) : Dygraph.numericTicks };
    const x = { axisLabelFormatter: this.axis.tick, pixelsPerLabel: 60, axisLabelWidth: this.axis.labelWidth ? this.axis.labelWidth(this.canvas.clientWidth - 78) : 60, drawGrid: false };
    if (this.axis.ticker) x.ticker = this.axis.ticker;
    return { x, y };
  }

  fixed() {
    const spec = this.spec;
    return {
      stackedGraph: Boolean(spec.stacked),
      fillGraph: Boolean(spec.histogram),
      stepPlot: Boolean(spec.histogram),
      fillAlpha: this.axis.apart ? 0 : spec.stacked ? 0.55 : 0.18,
      connectSeparatedPoints: true,
      drawGapEdgePoints: true,
      highlightCircleSize: 3,
      legend: 'never',
      axisLabelFontSize: 12,
      rightGap: 12,
      xRangePad: spec.pad || 2,
      yRangePad: 10,
      animatedZooms: false,
      interactionModel: interaction(),
      highlightCallback: (event, x, points, row) => {
        this.showLegend(row);
        if (this.group && event) this.group.hover(this, x);
      },
      unhighlightCallback: (event) => {
        this.showLegend(null);
        if (this.group && event) this.group.hover(this, null);
      },
      underlayCallback: (context, area, graph) => {
        this.drawMarks(context, area, graph);
        this.drawRaw(context, area, graph);
        if (this.axis.apart) this.drawErrors(context, graph);
      },
      drawCallback: (graph, initial) => {
        if (this.group && !initial) this.group.zoomed(this);
      },
      drawHighlightPointCallback: (graph, name, context, cx, cy, stroke, radius) => {
        const area = graph.getArea();
        context.save();
        context.strokeStyle = getComputedStyle(document.body).getPropertyValue('--hair').trim();
        context.lineWidth = 1;
        context.beginPath();
        context.moveTo(Math.round(cx) + 0.5, area.y);
        context.lineTo(Math.round(cx) + 0.5, area.y + area.h);
        context.stroke();
        context.fillStyle = stroke;
        context.beginPath();
        context.arc(cx, cy, radius, 0, 2 * Math.PI);
        context.fill();
        context.restore();
      },
    };
  }

  drawMarks(context, area, graph) {
    context.save();
    context.lineWidth = 1;
    context.font = '11px sans-serif';
    context.textBaseline = 'top';
    const [from, to] = graph.xAxisRange();
    const labels = [];  // the runs of several members have nearly the same ones: those that overlap are drawn once
    for (const { x, isSolid, index, text } of this.marks) {
      if (x < from || x > to) continue;
      const at = Math.round(graph.toDomXCoord(x)) + 0.5;
      context.strokeStyle = index === null ? getComputedStyle(document.body).getPropertyValue('--hair').trim() : colour(index);
      context.setLineDash(isSolid ? [] : [3, 3]);
      context.beginPath();
      context.moveTo(at, area.y);
      context.lineTo(at, area.y + area.h);
      context.stroke();
      const width = context.measureText(text).width;
      const left = Math.min(at + 3, area.x + area.w - width);
      if (!text || labels.some((label) => left < label.to && left + width > label.from)) continue;
      context.fillStyle = getComputedStyle(document.body).getPropertyValue('--muted').trim();
      context.fillText(text, left, area.y + 2);
      labels.push({ from: left, to: left + width + 6 });
    }
    context.restore();
  }

  // Draws a vertical line from minimum to maximum of each point, instead of a band.
  drawErrors(context, graph) {
    context.save();
    context.lineWidth = 1.6;
    this.lines.forEach((line) => {
      context.strokeStyle = colour(line.index);
      for (const point of line.points) {
        const at = graph.toDomXCoord(point.x);
        context.beginPath();
        context.moveTo(at, graph.toDomYCoord(this.height(point.min)));
        context.lineTo(at, graph.toDomYCoord(this.height(point.max)));
        context.stroke();
      }
    });
    context.restore();
  }

  // Draws the raw values below the smoothed lines.
  drawRaw(context, area, graph) {
    context.save();
    context.beginPath();
    context.rect(area.x, area.y, area.w, area.h);
    context.clip();
    context.globalAlpha = 0.35;
    context.lineWidth = 1;
    const [from, to] = graph.xAxisRange();
    for (const line of this.lines) {
      if (line.points.length === 0 || line.points[0].raw === undefined) continue;
      context.strokeStyle = colour(line.index);
      context.beginPath();
      line.points.forEach((point, i) => {
        const next = line.points[i + 1], before = line.points[i - 1];
        if ((next && next.x < from) || (before && before.x > to)) return;
        const y = this.height(point.raw);
        if (before && before.isBreak) context.moveTo(graph.toDomXCoord(point.x), graph.toDomYCoord(y ?? 0));
        if (y !== null && !point.isBreak) context.lineTo(graph.toDomXCoord(point.x), graph.toDomYCoord(y));
      });
      context.stroke();
    }
    context.restore();
  }

  // The recorded value of a line in a row: {mean, min, max}, or null.
  valueAt(row, line) {
    const x = this.graph.getValue(row, 0);
    const point = this.lines[line].at.get(x);
    return point && !point.isBreak ? point : null;
  }

  showLegend(row) {
    const unit = units[this.spec.unit];
    const parts = [];
    const x = row === null ? null : this.graph.getValue(row, 0);
    this.lines.forEach((line, i) => {
      const item = element('span', { class: 'item' }, swatch(line.index), line.label);
      const point = row === null ? null : this.valueAt(row, i);
      if (point) {
        const raw = point.raw === undefined ? '' : ', raw ' + unit.text(point.raw);
        const range = point.max > point.min && this.banded ? ' (' + unit.text(point.min) + ' – ' + unit.text(point.max) + ')' : '';
        item.append(' ', element('b', {}, unit.text(point.mean)), raw, range);
      }
      if (row === null && line.summary) item.append(': ' + line.summary);
      parts.push(item);
    });
    if (x !== null) parts.push(element('span', { class: 'at' }, this.axis.text(x)));
    this.legend.replaceChildren(...parts);
  }

  // Selects the row nearest to x. If x is null, selects no row.
  select(x) {
    if (!this.graph) return;
    if (x === null) {
      this.graph.clearSelection();
      this.showLegend(null);
      return;
    }
    let low = 0, high = this.graph.numRows() - 1;
    while (high - low > 1) {
      const half = (low + high) >> 1;
      if (this.graph.getValue(half, 0) <= x) low = half; else high = half;
    }
    const nearest = Math.abs(this.graph.getValue(low, 0) - x) <= Math.abs(this.graph.getValue(high, 0) - x) ? low : high;
    this.graph.setSelection(nearest);
    this.showLegend(nearest);
  }

  // Shows the values of a row in all charts; null: hides them.
  point(row) {
    if (!this.graph || (row === null && this.selected === null)) return;
    this.selected = row;
    const x = row === null ? null : this.graph.getValue(row, 0);
    this.select(x);
    if (this.group) this.group.hover(this, x);
    if (row !== null) document.getElementById('spoken').textContent = this.legend.textContent;
  }

  // Handles a key that is pressed while the chart has the focus.
  key(event) {
    if (!this.graph || event.ctrlKey || event.altKey || event.metaKey) return;
    const rows = this.graph.numRows();
    const [from, to] = this.graph.xAxisRange();
    const inside = (row) => this.graph.getValue(row, 0) >= from && this.graph.getValue(row, 0) <= to;
    const first = () => { let row = 0; while (row < rows - 1 && !inside(row)) ++row; return row; };
    const last = () => { let row = rows - 1; while (row > 0 && !inside(row)) --row; return row; };
    const move = (by) => {
      const row = this.selected === null ? (by > 0 ? first() : last()) : this.selected + by;
      this.point(Math.min(rows - 1, Math.max(0, row)));
    };
    const zoom = (factor) => {
      if (!this.group) return;
      const middle = this.selected === null ? (from + to) / 2 : this.graph.getValue(this.selected, 0);
      const half = factor * (to - from) / 2;
      const full = this.group.full;
      const range = [Math.max(full[0], middle - half), Math.min(full[1], middle + half)];
      this.group.show(range[0] === full[0] && range[1] === full[1] ? null : range);
    };
    const stride = event.shiftKey ? 10 : 1;
    const keys = {
      ArrowLeft: () => move(-stride), ArrowRight: () => move(stride), Home: () => this.point(first()), End: () => this.point(last()),
      '+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2),
      Escape: () => { this.point(null); if (this.group) this.group.show(null); },
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }

  csv() {
    const head = [this.spec.histogram ? 'from' : this.axis.title];
    for (const line of this.lines) {
      head.push(...(line.band ? [line.label + ', mean', line.label + ', min', line.label + ', max'] : [line.label]));
      if (line.smoothed) head.push(line.label + ', smoothed');
    }
    const rows = joinPoints(this.lines.map((line) => line.points.filter((point) => !point.isBreak)), (point) => point);
    return [head, ...rows.map((row) => {
      const cells = [this.axis.csv ? this.axis.csv(row[0]) : row[0]];
      this.lines.forEach((line, i) => {
        const point = row[i + 1];
        const mean = point ? point.raw ?? point.mean : null;
        cells.push(...(line.band ? [mean, point ? point.min : null, point ? point.max : null] : [mean]));
        if (line.smoothed) cells.push(point ? point.mean : null);
      });
      return cells;
    })];
  }
}

// Charts with a common horizontal axis: they zoom together and highlight the same x.
class Group {
  constructor(onZoom) {
    this.panels = [];
    this.busy = false;
    this.window = null;  // null: the full range
    this.onZoom = onZoom;
  }

  add(panel) {
    if (!this.panels.includes(panel)) this.panels.push(panel);
  }

  // The range of all points in all charts, with a margin.
  extent() {
    let from = Infinity, to = -Infinity;
    for (const panel of this.panels) {
      for (const line of panel.lines) {
        if (line.points.length === 0) continue;
        from = Math.min(from, line.points[0].x);
        to = Math.max(to, line.points[line.points.length - 1].x);
      }
    }
    const margin = 0.012 * (to - from) || 0.5;
    return from <= to ? [from - margin, to + margin] : [0, 1];
  }

  // Calls `act` for each panel, and ignores the callbacks that this triggers.
  each(act) {
    if (this.busy) return;
    this.busy = true;
    for (const panel of this.panels) {
      if (panel.graph) act(panel);
    }
    this.busy = false;
  }

  hover(from, x) {
    this.each((panel) => { if (panel !== from) panel.select(x); });
  }

  // Called after one panel was zoomed or reset.
  zoomed(from) {
    if (this.busy) return;
    const range = from.graph.isZoomed('x') ? from.graph.xAxisRange() : null;
    const shown = this.window || this.full;
    if (range && shown && range[0] === shown[0] && range[1] === shown[1]) return;
    this.show(range);
  }

  show(range) {
    this.window = range;
    this.full = this.extent();
    const dateWindow = range || this.full;
    this.each((panel) => panel.graph.updateOptions({ dateWindow, valueRange: panel.range() }));
    this.onZoom(range !== null);
  }
}
