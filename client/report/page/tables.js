// The tables: headline, differences, flows and settings.

function row(cells, name = 'td') {
  return element('tr', {}, ...cells.map((cell, i) => element(i === 0 ? 'th' : name, i === 0 ? { scope: 'row' } : {}, cell)));
}

// head: column titles; rows: lists of texts or elements.
function table(caption, head, rows, name) {
  const texts = () => [head, ...rows.map((cells) => cells.map((cell) => (cell instanceof Node ? cell.textContent : cell)))];
  const body = element('table', {},
    element('thead', {}, element('tr', {}, ...head.map((text) => element('th', { scope: 'col' }, text)))),
    element('tbody', {}, ...rows.map((cells) => row(cells))));
  return element('div', { class: 'card table', id: name },
    element('div', { class: 'card-head' }, element('h3', {}, caption), csvButton(caption, 'cleave-' + name, texts)),
    element('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption }, body));
}

// The figures of the headline: key, name, text, whether more or less is better (if either is), and
// how to format a difference (default: relativeTo).
const figures = [
  ['eval_loss', 'Loss, last evaluation', (v) => units.nats.text(v), 'less'],
  ['seconds', 'Time', (v) => (v < 59.95 ? durationText(v) : clockText(v) + ' (' + significant(v, 4) + ' s)'), 'less'],
  ['steps', 'Training steps', (v) => String(v)],
  ['images_per_second', 'Images per second', (v) => significant(v, 4), 'more'],
  ['seconds_a_step', 'Step time, mean', (v) => units.seconds.text(v), 'less'],
  ['ratio', 'Bytes on the wire / raw bytes', (v) => significant(v, 4), 'less'],
  ['bytes_up', 'Bytes up', (v) => units.bytes.text(v), 'less'],
  ['bytes_down', 'Bytes down', (v) => units.bytes.text(v), 'less'],
  ['mean_up_bytes_per_second', 'Bandwidth up, mean', (v) => units.rate.text(v)],
  ['mean_down_bytes_per_second', 'Bandwidth down, mean', (v) => units.rate.text(v)],
  ['busiest_second_up', 'Bandwidth up, busiest second, tensors only', (v) => units.rate.text(v)],
  ['busiest_second_down', 'Bandwidth down, busiest second, tensors only', (v) => units.rate.text(v)],
  ['bound_seconds_a_step', 'Minimum possible step time, mean', (v) => units.seconds.text(v)],
  ['over_bound', 'Step time / bound', (v) => significant(v) + ' ×', 'less'],
  ['bottleneck', 'Bottleneck', (v) => v],
];

function tile(name, value, detail, id) {
  return element('div', { class: 'tile', id: 'tile-' + id },
    element('p', { class: 'muted' }, name), element('p', { class: 'value' }, value), element('p', { class: 'muted' }, detail));
}

function metricTile(h, known) {
  if (!h.metric_name) return tile('Loss', known(h.eval_loss, units.nats.text), 'of the last evaluation', 'metric');
  const { text } = units[h.metric_unit];
  return h.metric !== undefined
    ? tile(h.metric_title, text(h.metric), 'last evaluation; best ' + text(h.best_metric), 'metric')
    : tile(h.metric_title + ', training', known(h.train_metric, text), 'last step; no evaluation yet', 'metric');
}

// The figures of the main metric, if all runs have the same.
function metricFigures(runs) {
  const { metric_name: name, metric_title: title, metric_unit: unit, metric_better: better } = runs[0].headline;
  if (!name || runs.some((run) => run.headline.metric_name !== name)) return [];
  const { text } = units[unit];
  const apart = unit === 'share' ? pointsApart : relativeTo;
  return [['metric', title + ', last evaluation', text, better, apart], ['best_metric', title + ', best evaluation', text, better, apart]];
}

function headlineOfOne(run) {
  const h = run.headline;
  const known = (value, text) => (value === undefined ? '–' : text(value));
  const tiles = element('div', { class: 'tiles' }, metricTile(h, known),
    tile('Time', known(h.seconds, durationText), known(h.steps, (steps) => steps + ' steps, ') +
         known(h.images_per_second, (v) => significant(v, 4) + ' images/s'), 'time'),
    tile('Bytes', known(h.ratio, (v) => significant(v, 3) + ' ×'), 'the raw tensor size; ' +
         known(h.bytes_up, units.bytes.text) + ' up, ' + known(h.bytes_down, units.bytes.text) + ' down', 'ratio'),
    tile('Bandwidth, mean', known(h.mean_up_bytes_per_second, units.rate.text),
         'up; ' + known(h.mean_down_bytes_per_second, units.rate.text) + ' down', 'bandwidth'),
    tile('Bound', known(h.over_bound, (v) => significant(v) + ' ×'), h.over_bound === undefined ? 'unknown' :
         'a step took ' + units.seconds.text(h.bounded_seconds_a_step) + '; the bound is ' + units.seconds.text(h.bound_seconds_a_step), 'bound'));
  if (!h.bottleneck) return [tiles];
  return [tiles, element('div', { class: 'card words', id: 'bottleneck' },
    element('h3', {}, 'Bottleneck: ' + h.bottleneck), element('p', {}, h.words),
    ...(h.advice ? [element('p', { id: 'advice' }, h.advice)] : []))];
}

// "+25 %", relative to the reference.
function relativeTo(value, reference) {
  if (!reference) return '';
  const change = value / reference - 1;
  return Math.abs(change) < 0.0005 ? '±0 %' : (change > 0 ? '+' : '−') + significant(100 * Math.abs(change)) + ' %';
}

// For shares: "+1.25 points", in percentage points.
function pointsApart(value, reference) {
  return (value > reference ? '+' : '−') + (100 * Math.abs(value - reference)).toFixed(2) + ' points';
}

function change(value, reference, better, apart) {
  if (typeof value !== 'number' || typeof reference !== 'number' || value === reference) return '';
  const text = apart(value, reference);
  const good = better && (better === 'more') === (value > reference);
  return element('span', { class: 'change' + (better ? (good ? ' good' : ' bad') : '') }, text);
}

function headlineOfMany(runs, reference) {
  const rows = [];
  for (const [key, name, text, better, apart = relativeTo] of [...metricFigures(runs), ...figures]) {
    if (runs.every((run) => run.headline[key] === undefined)) continue;
    const base = runs[reference].headline[key];
    rows.push([name, ...runs.map((run, i) => {
      const value = run.headline[key];
      if (value === undefined) return '–';
      return element('span', {}, text(value), ' ', i === reference ? '' : change(value, base, better, apart));
    })]);
  }
  return table('Figures, with differences from ' + runs[reference].short, ['', ...runs.map((run) => run.short)], rows, 'compared');
}

function runList(runs, reference, choose) {
  return element('div', { class: 'card', id: 'runs' }, element('h3', {}, 'Runs'),
    element('p', { class: 'muted note' }, 'The figures below are compared with the run selected here.'),
    element('ul', { class: 'runs' }, ...runs.map((run, i) => {
      const radio = element('input', { type: 'radio', name: 'reference', id: 'reference-' + i });
      radio.checked = i === reference;
      radio.addEventListener('change', () => choose(i));
      return element('li', {}, radio, element('label', { for: 'reference-' + i }, swatch(i), element('b', {}, run.short),
        ' ', element('span', { class: 'muted' }, run.folder + (run.ended ? (run.completed ? '' : ', stopped early') : ', not finished'))));
    })));
}

function differenceTables(page, runs) {
  const tables = [];
  for (const [what, name] of [['config', 'Differences in configuration'], ['environment', 'Differences in environment']]) {
    const rows = page.differences[what].map(([key, ...values]) => [key, ...values.map((value) => (value === null ? '–' : value))]);
    if (rows.length > 0) tables.push(table(name, ['', ...runs.map((run) => run.short)], rows, 'different-' + what));
  }
  return tables;
}

function bar(share) {
  const fill = element('i');
  fill.style.width = 100 * Math.min(1, share) + '%';
  return element('span', { class: 'bar' }, fill);
}

function flowTable(run, title, id) {
  const head = ['Flow', 'Codec', 'Tensors', 'Raw', 'On the wire', 'Ratio', 'Encoding', 'Decoding', 'Codec error, mean (worst)'];
  const rows = run.flows.map((flow) => [
    { up: '↑ ', down: '↓ ', both: '↕ ' }[flow.direction] + flow.flow,
    flow.codec,
    String(flow.transfers),
    units.bytes.text(flow.raw_bytes),
    units.bytes.text(flow.wire_bytes),
    flow.ratio === undefined ? '–' : element('span', { class: 'ratio' }, significant(flow.ratio, 4), bar(flow.ratio)),
    units.seconds.text(flow.encode_seconds),
    units.seconds.text(flow.decode_seconds),
    flow.snr_mean === undefined ? '–' : units.decibel.text(flow.snr_mean) + ' (' + units.decibel.text(flow.snr_min) + ')',
  ]);
  return table(title, head, rows, id);
}

function settingTables(run, suffix, id) {
  const tables = [];
  for (const [key, name] of [['config', 'Configuration'], ['environment', 'Client'], ['server_environment', 'Server']]) {
    if (run[key].length > 0) tables.push(table(name + suffix, ['Key', 'Value'], run[key], key + id));
  }
  return tables;
}

function problemList(runs) {
  const items = [];
  for (const run of runs) {
    for (const text of run.problems.concat(run.logged)) {
      items.push(element('li', {}, runs.length > 1 ? element('b', {}, run.short + ': ') : '', text));
    }
  }
  return items.length === 0 ? [] : [element('h2', {}, 'Missing data and problems'), element('ul', {}, ...items)];
}
