// Builds the page of a sweep: its groups, a comparison with published figures, the main metric by
// bytes and time, and the throughput by micro-batches, codec and transfer size.

const upFlows = ['activation/0', 'gradient/1'];
const microBatchesKey = 'train.micro_batches';
const repetitionKeys = ['run.seed', 'data.fold'];  // points that differ only in these form a group

// The columns of the two tables: name, title, unit. The main metric comes before those of the first.
const resultColumns = [
  ['loss', 'Loss', 'nats'],
  ['total_bytes', 'Bytes', 'bytes'],
  ['total_up_bytes', 'Bytes up', 'bytes'],
  ['total_down_bytes', 'Bytes down', 'bytes'],
  ['run_seconds', 'Time', 'seconds'],
  ['images_per_second', 'Samples/s', 'number'],
];
const stepColumns = [
  ['step_seconds', 'Step', 'seconds'],
  ['over_bound', 'Step / bound', 'times'],
  ['ratio', 'Ratio', 'number'],
  ['average_up', 'Average up', 'rate'],
  ['peak_up', 'Peak up', 'rate'],
  ['average_down', 'Average down', 'rate'],
  ['peak_down', 'Peak down', 'rate'],
  ['model_bytes', 'Model', 'bytes'],
];

const sweepCharts = [
  ['average_up', 'Average bandwidth of tensors up'],
  ['peak_up', 'Peak bandwidth of the connection up'],
  ['average_down', 'Average bandwidth of tensors down'],
  ['peak_down', 'Peak bandwidth of the connection down'],
];

// Returns "block:bits=4, rate 100Mbit/s": the values of all keys except those in `leftOut`.
function labelOf(sweep, values, leftOut) {
  const parts = sweep.axes.map((axis) => axis.key).filter((key) => key in values && !leftOut.includes(key));
  return parts.map((key) => (key === 'codec' ? '' : key.slice(key.lastIndexOf('.') + 1) + ' ') + values[key]).join(', ') || 'all points';
}

// The keys of the grid that distinguish groups.
function groupKeys(sweep) {
  const leftOut = [...repetitionKeys, ...constantKeys(sweep)];
  return sweep.axes.map((axis) => axis.key).filter((key) => !leftOut.includes(key));
}

// The keys that have the same value in all points.
function constantKeys(sweep) {
  return sweep.axes.filter((axis) => axis.values.length === 1).map((axis) => axis.key);
}

function hasRepetitions(sweep) {
  return sweep.axes.some((axis) => repetitionKeys.includes(axis.key));
}

// The main metric of all groups: {name, title, unit}; null if they have different ones or none.
function mainMetric(sweep) {
  const known = sweep.groups.filter((group) => group.points.length > 0).map((group) => group.main_metric);
  if (known.length === 0 || known.some((one) => !one || one.name !== known[0].name)) return null;
  return { ...known[0], unit: known[0].is_share ? 'share' : 'number' };
}

// The columns of the main metric's last and best value.
function metricColumns(sweep) {
  const main = mainMetric(sweep);
  const [last, best] = !main || main.name === 'top1' ? ['top1', 'best_top1'] : ['metric', 'best_metric'];
  const title = main ? main.title : 'Top-1', unit = main ? main.unit : 'share';
  return [[last, title + ', last', unit], [best, title + ', best', unit]];
}

function resultTable(sweep) {
  const columns = [...metricColumns(sweep), ...resultColumns].filter(([name]) => sweep.groups.some((group) => group.metrics[name]));
  const hasSpeedUp = sweep.groups.some((group) => group.speed_up);
  const hasKeys = groupKeys(sweep).length > 0;
  const head = [...(hasKeys ? [] : ['']), ...groupKeys(sweep), ...columns.map((column) => column[1]), ...(hasSpeedUp ? ['Speed-up'] : []),
                hasRepetitions(sweep) ? 'Runs' : 'Run'];
  const rows = sweep.groups.map((group) => {
    const runs = group.points.map((point) =>
      element('a', { href: encodeURIComponent(point.name) + '/report.html' }, hasRepetitions(sweep) ? point.repetition : 'open'));
    return [...(hasKeys ? [] : ['all points']), ...groupKeys(sweep).map((key) => group.values[key]),
            ...columns.map(([name, , unit]) => spreadText(group.metrics[name], unit)),
            ...(hasSpeedUp ? [spreadText(group.speed_up, 'times')] : []),
            element('span', { class: 'links' }, ...runs.flatMap((link, i) => (i === 0 ? [link] : [' ', link])))];
  });
  return table(hasRepetitions(sweep) ? 'Results, mean ± standard deviation' : 'Results', head, rows, 'groups');
}

function stepTable(sweep) {
  const columns = stepColumns.filter(([name]) => sweep.groups.some((group) => group.metrics[name]));
  const hasKeys = groupKeys(sweep).length > 0;
  const rows = sweep.groups.map((group) => [...(hasKeys ? [] : ['all points']), ...groupKeys(sweep).map((key) => group.values[key]),
    ...columns.map(([name, , unit]) => spreadText(group.metrics[name], unit))]);
  return table('Steps, bandwidth (average: tensors; peak: connection), bytes of the model', [...(hasKeys ? [] : ['']), ...groupKeys(sweep), ...columns.map((column) => column[1])], rows, 'group-steps');
}

function comparisonTable(sweep) {
  const rows = sweep.comparison.map((one) => {
    return [labelOf(sweep, one.values, []), one.published, one.quantity + (one.unit ? ', ' + one.unit : ''),
            spreadText(one.ours, 'number'), spreadText(one.theirs, 'number'),
            [one.note, one.contradiction && 'the source contradicts itself: ' + one.contradiction, one.source].filter(Boolean).join('; ')];
  });
  return table('Published figures compared with ours', ['', 'Published', 'Quantity', 'Ours', 'Theirs', 'Source and notes'], rows, 'comparison');
}

// Returns one line for each combination of values, without the key of the axis.
function linesAlong(axis, sweep, metric) {
  const lines = new Map();
  for (const group of sweep.groups) {
    const spread = group.metrics[metric];
    if (!spread) continue;
    const label = labelOf(sweep, group.values, [axis.key]);
    if (!lines.has(label)) lines.set(label, []);
    const std = spread.std || 0;
    lines.get(label).push({ x: axis.place(group), mean: spread.mean, min: spread.mean - std, max: spread.mean + std });
  }
  return lines;
}

// Returns one line for each combination of values of the keys other than codecs and micro-batches,
// which determine the sizes. Transfers of the same size class are merged; minimum and maximum are
// taken over the points with this size class.
function linesBySize(sweep, up) {
  const lines = new Map();
  for (const point of sweep.points) {
    const label = labelOf(sweep, point.values, ['codec', microBatchesKey, ...repetitionKeys]);
    for (const one of point.transfers || []) {
      if (upFlows.includes(one.flow) !== up) continue;
      if (!lines.has(label)) lines.set(label, new Map());
      const classes = lines.get(label), key = Math.floor(4 * Math.log2(one.bytes));
      const sum = classes.get(key) || { transfers: 0, bytes: 0, seconds: 0, min: Infinity, max: 0 };
      sum.transfers += one.transfers;
      sum.bytes += one.transfers * one.bytes;
      sum.seconds += one.transfers * one.bytes / one.bandwidth;
      sum.min = Math.min(sum.min, one.bandwidth);
      sum.max = Math.max(sum.max, one.bandwidth);
      classes.set(key, sum);
    }
  }
  return new Map([...lines].map(([label, classes]) => [label, [...classes.values()].map((sum) => (
    { x: Math.log10(sum.bytes / sum.transfers), mean: sum.bytes / sum.seconds, min: sum.min, max: sum.max }))]));
}

function microBatchAxis(numbers) {
  return {
    key: microBatchesKey,
    pad: 8,
    place: (group) => group.micro_batches,
    title: 'micro-batches',
    text: (x) => plain(x) + (x === 1 ? ' micro-batch' : ' micro-batches'),
    tick: plain,
    ticker: (low, high) => numbers.filter((v) => v >= low && v <= high).map((v) => ({ v, label: plain(v) })),
  };
}

// An axis with the values of one key side by side, in the grid's order.
function valueAxis({ key, values }) {
  const name = (x) => values[Math.round(x)] || '';
  const width = 7 * Math.max(...values.map((value) => value.length));  // width of the longest value in pixels
  return {
    key,
    place: (group) => values.indexOf(group.values[key]),
    title: key,
    text: name,
    tick: name,
    ticker: (low, high, pixels) => {
      const wide = pixels / values.length >= width;
      return values.map((value, v) => ({ v, label: wide ? value : String(v + 1) }));
    },
    csv: name,
    labelWidth: (pixels) => (pixels / values.length >= width ? width + 14 : 40),
    pad: 36,
    apart: true,  // the values are not connected by lines
  };
}

// The axis for throughput: the micro-batches if the points differ in them, otherwise the codecs if
// the points differ in those, otherwise null.
function bandwidthAxis(sweep) {
  const numbers = [...new Set(sweep.groups.map((group) => group.micro_batches))].filter((number) => number !== undefined);
  if (numbers.length > 1) return microBatchAxis(numbers);
  const codecs = sweep.axes.find((axis) => axis.key === 'codec' && axis.values.length > 1);
  return codecs ? valueAxis(codecs) : null;
}

const sizeAxis = {
  title: 'bytes of a transfer on the wire, logarithmic',
  text: (x) => units.bytes.text(10 ** x),
  tick: units.bytes.tick,
  ticker: decades(units.bytes, 84),
  csv: (x) => Number((10 ** x).toPrecision(6)),
};

// Returns one line per group, with a point per evaluation: its value by what had been spent, such as
// 'total_bytes'.
function curvesOver(sweep, spent) {
  return new Map(sweep.groups.map((group) => [labelOf(sweep, group.values, constantKeys(sweep)),
    group.curve.filter((point) => point.eval_metric && point[spent].mean > 0).map((point) => {
      const { mean, std } = point.eval_metric;
      return { x: point[spent].mean, mean, min: mean - (std || 0), max: mean + (std || 0) };
    })]).filter(([, points]) => points.length > 0));
}

// An axis for these lines. It is logarithmic if their points differ by a factor of more than 20; the
// points are then moved to their logarithms.
function curveAxis(lines, unit, title) {
  const all = [...lines.values()].flat();
  const isLog = Math.max(...all.map((point) => point.x)) > 20 * Math.min(...all.map((point) => point.x));
  const { text, tick } = units[unit];
  if (!isLog) return { title, text, tick };
  for (const point of all) point.x = Math.log10(point.x);
  return { title: title + ', logarithmic', text: (x) => text(10 ** x), tick, ticker: decades(units[unit], 46), csv: (x) => Number((10 ** x).toPrecision(6)) };
}

const curveCharts = [
  ['total_bytes', 'bytes', 'bytes transferred so far, both directions'],
  ['seconds', 'seconds', 'time of training and evaluation so far'],
];

function sweepPanels(sweep) {
  const made = [];
  const add = (section, spec, lines, axis) => {
    const panel = new Panel(spec, null);
    section.append(panel.card);
    const drawn = [...lines].map(([label, points], i) => ({
      label, index: i, points: points.sort((one, other) => one.x - other.x), dots: true, summary: '',
      band: points.some((point) => point.max > point.min),
    }));
    made.push({ panel, draw: () => panel.show(drawn, axis) });
  };
  const section = (id, title) => {
    const grid = element('div', { class: 'grid' });
    document.querySelector('main').append(element('section', { id }, element('h2', {}, title), grid));
    return grid;
  };
  const main = mainMetric(sweep);
  const curves = main && curveCharts.map(([spent, unit, title]) => ({ spent, unit, title, lines: curvesOver(sweep, spent) }));
  if (main && curves[0].lines.size > 0) {
    const grid = section('sweep-curves', main.title + ' by bytes and time');
    const spread = hasRepetitions(sweep) ? ' Means over the seeds and folds; a band is the standard deviation.' : '';
    for (const { spent, unit, title, lines } of curves) {
      const axis = curveAxis(lines, unit, title);
      add(grid, { id: 'metric-' + unit, title: main.title + ' over ' + (unit === 'bytes' ? 'bytes' : 'time'), unit: main.unit, pad: 12,
                  note: 'Each point is an evaluation, at the end of an epoch.' + spread }, lines, axis);
    }
  }
  const axis = bandwidthAxis(sweep);
  const bandwidth = axis && section('sweep-bandwidth', axis.key === microBatchesKey ? 'Bandwidth by micro-batches and codec' : 'Bandwidth by codec');
  const note = hasRepetitions(sweep) ? ' A ' + (axis && axis.apart ? 'vertical line' : 'band') + ' is the standard deviation over the seeds and folds.' : '';
  for (const [metric, title] of axis ? sweepCharts : []) {
    const what = metric.startsWith('peak') ? 'Maximum rate over 100 ms, of everything on the connection.' : 'Tensor bytes of the training steps divided by the time of these steps.';
    add(bandwidth, { id: metric.replace('_', '-'), title, unit: 'rate', zero: true, pad: axis.pad, note: what + note },
        linesAlong(axis, sweep, metric), axis);
  }
  const sizes = section('sweep-sizes', 'Bandwidth against transfer size');
  for (const [way, up] of [['up', true], ['down', false]]) {
    add(sizes, { id: 'sizes-' + way, title: 'Bandwidth of transfers ' + way, unit: 'rate', log: true, pad: 8,
                 note: 'Bytes divided by the seconds from a transfer’s first byte to its last, for all codecs and micro-batches together. The band spans the slowest to the fastest point.' },
        linesBySize(sweep, up), sizeAxis);
  }
  return made;
}

function showSweep(sweep) {
  for (const id of ['training', 'steps', 'link', 'bytes', 'settings', 'state']) byId(id).hidden = true;
  document.querySelector('.tools').hidden = true;
  document.title = sweep.folder + ' – Cleave';
  byId('title').textContent = 'Sweep';
  byId('subtitle').textContent = sweep.folder + ': ' + sweep.points.filter((point) => point.status === 'done').length + ' of ' + sweep.points.length + ' points done' +
    constantKeys(sweep).map((key) => ', ' + key + '=' + sweep.axes.find((axis) => axis.key === key).values[0]).join('');
  byId('written').textContent = 'Written: ' + sweep.written.replace('T', ' ').replace(/\.\d+Z/, ' UTC') + ' by ' + sweep.software + '.';
  const failed = sweep.points.filter((point) => point.failure);
  byId('problems').hidden = failed.length === 0;
  byId('problems').replaceChildren(element('h2', {}, 'Points that failed'),
    element('ul', {}, ...failed.map((point) => element('li', {}, element('b', {}, labelOf(sweep, point.values, []) + ': '), point.failure))));
  byId('headline').replaceChildren(resultTable(sweep), stepTable(sweep), ...(sweep.comparison.length > 0 ? [comparisonTable(sweep)] : []));
  const drawn = sweepPanels(sweep);
  const draw = () => drawn.forEach((one) => one.draw());
  draw();
  darkness.addEventListener('change', draw);
  window.cleaveReport = { page: () => sweep, panels: () => drawn.map((one) => one.panel) };
}
