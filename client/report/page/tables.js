// Builds the tables of a page: headline, differences, flows and settings.

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

// The figures of the headline. Each has a key, a name, a function that formats the value, whether
// 'more' or 'less' is better (optional), and a function that formats a difference (default:
// relativeTo).
const figures = [
  ['eval_loss', 'Loss, last evaluation', (v) => units.nats.text(v), 'less'],
  ['seconds', 'Time', (v) => (v < 59.95 ? durationText(v) : clockText(v) + ' (' + significant(v, 4) + ' s)'), 'less'],
  ['steps', 'Training steps', (v) => String(v)],
  ['target_steps', 'Steps until the target', (v) => String(v), 'less'],
  ['target_seconds', 'Time until the target', (v) => units.seconds.text(v), 'less'],
  ['target_bytes', 'Bytes until the target', (v) => units.bytes.text(v), 'less'],
  ['images_per_second', 'Samples per second', (v) => significant(v, 4), 'more'],
  ['seconds_per_step', 'Step time, mean', (v) => units.seconds.text(v), 'less'],
  ['ratio', 'Bytes on the wire / raw bytes', (v) => significant(v, 4), 'less'],
  ['bytes_up', 'Bytes up', (v) => units.bytes.text(v), 'less'],
  ['bytes_down', 'Bytes down', (v) => units.bytes.text(v), 'less'],
  ['tensor_bytes_up', 'Bytes up, of tensors', (v) => units.bytes.text(v), 'less'],
  ['tensor_bytes_down', 'Bytes down, of tensors', (v) => units.bytes.text(v), 'less'],
  ['model_bytes_up', 'Bytes up, of the model', (v) => units.bytes.text(v)],
  ['model_bytes_down', 'Bytes down, of the model', (v) => units.bytes.text(v)],
  ['mean_up_bytes_per_second', 'Bandwidth of tensors up, mean', (v) => units.rate.text(v)],
  ['mean_down_bytes_per_second', 'Bandwidth of tensors down, mean', (v) => units.rate.text(v)],
  ['busiest_second_up', 'Bandwidth of tensors up, busiest second', (v) => units.rate.text(v)],
  ['busiest_second_down', 'Bandwidth of tensors down, busiest second', (v) => units.rate.text(v)],
  ['bound_seconds_per_step', 'Minimum step time, estimate, mean', (v) => units.seconds.text(v)],
  ['over_bound', 'Step time / bound', (v) => significant(v) + ' ×', 'less'],
  ['bottleneck', 'Bottleneck', (v) => v],
];

// Shown only if a run was interrupted.
const interruptionFigures = [
  ['resumes', 'Resumes', (v) => String(v)],
  ['steps_redone', 'Steps redone', (v) => String(v)],
  ['reconnects', 'Reconnects', (v) => String(v)],
  ['offline_seconds', 'Time without a connection', (v) => units.seconds.text(v)],
];

function wasInterrupted(run) {
  return run.headline.resumes > 0 || run.headline.reconnects > 0;
}

function tile(name, value, detail, id) {
  return element('div', { class: 'tile', id: 'tile-' + id },
    element('p', { class: 'muted' }, name), element('p', { class: 'value' }, value), element('p', { class: 'muted' }, detail));
}

// The text that names the epoch of the best model that was kept.
function keptText(h) {
  if (!h.kept) return '';
  if (h.kept.epoch === h.best_epoch && h.kept.title === h.metric_title) return ', which is kept';
  return '; kept: epoch ' + h.kept.epoch + ' with ' + h.kept.title.toLowerCase() + ' ' + units[h.kept.unit].text(h.kept.value);
}

// When the run reached its target; nothing if it has none.
function targetTiles(h) {
  if (!h.target) return [];
  const name = 'Until ' + h.target.title.toLowerCase() + ' ' + units[h.target.unit].text(h.target.value);
  return [h.target_steps === undefined ? tile(name, '–', 'not reached', 'target')
    : tile(name, durationText(h.target_seconds), h.target_steps + ' steps, ' + units.bytes.text(h.target_bytes), 'target')];
}

function metricTile(h, known) {
  const kept = keptText(h);
  if (!h.metric_name) return tile('Loss', known(h.eval_loss, units.nats.text), 'of the last evaluation' + kept, 'metric');
  const { text } = units[h.metric_unit];
  return h.metric !== undefined
    ? tile(h.metric_title, text(h.metric), 'last evaluation; best ' + text(h.best_metric) + ' in epoch ' + h.best_epoch + kept +
           (h.own_metric === undefined ? '' : '; ' + text(h.own_metric) + " on this member's own samples"), 'metric')
    : tile(h.metric_title + ', training', known(h.train_metric, text), 'last step; no evaluation yet', 'metric');
}

// The figures of the main metric. Runs with different main metrics are shown together, but not
// compared.
function metricFigures(runs) {
  const { metric_name: name, metric_title: title, metric_unit: unit, metric_better: better } = runs[0].headline;
  if (runs.some((run) => run.headline.metric_name !== name)) {
    const text = (value, h) => units[h.metric_unit].text(value) + ' (' + h.metric_title + ')';
    return [['metric', 'Main metric, last evaluation', text], ['best_metric', 'Main metric, best evaluation', text]];
  }
  if (!name) return [];
  const { text } = units[unit];
  const apart = unit === 'share' ? pointsApart : relativeTo;
  return [['metric', title + ', last evaluation', text, better, apart], ['own_metric', title + ', own samples of the member', text, better, apart], ['best_metric', title + ', best evaluation', text, better, apart]];
}

// Returns "step 120 of 300, epoch 2 of 3".
function placeText(h) {
  const of = (number, all) => number + (all ? ' of ' + all : '');
  return 'step ' + of(h.steps || 0, h.total_steps) + (h.epoch ? ', epoch ' + of(h.epoch, h.total_epochs) : '');
}

// The progress of a run; nothing if it has ended.
function progressCard(page) {
  const run = page.runs[0], h = run.headline;
  if (run.ended || !h.total_steps) return [];
  const share = (h.steps || 0) / h.total_steps;
  const left = page.live && h.seconds_left !== undefined ? '; about ' + clockText(h.seconds_left) + ' left' : '';
  const text = Math.floor(100 * share) + ' %: ' + placeText(h) + left;
  return [element('div', { class: 'card', id: 'progress' }, element('p', {}, text), bar(share))];
}

// Returns "3 resumes".
function countText(count, what) {
  return count + ' ' + what + (count === 1 ? '' : 's');
}

// The run's resumes and reconnects; nothing if it had none.
function interruptionCard(run) {
  if (!wasInterrupted(run)) return [];
  const h = run.headline;
  const offline = h.offline_seconds ? ' (' + units.seconds.text(h.offline_seconds) + ' without a connection)' : '';
  const text = countText(h.resumes, 'resume') + ' (' + countText(h.steps_redone, 'step') + ' redone), ' + countText(h.reconnects, 'reconnect') +
    offline + '. Vertical lines in the charts show where: solid for a resume, dashed for a reconnect.' +
    (run.cohort && run.cohort.attendance.length > 1 ? ' \u2212 and + name the members that left and joined.' : '');
  return [element('div', { class: 'card words', id: 'interruptions' }, element('h3', {}, 'Interruptions'), element('p', {}, text))];
}

// The settings that were changed on resume; nothing if none was.
function changeTable(run, title, id) {
  if (run.changes.length === 0) return [];
  const rows = run.changes.map((change) => [String(change.step), change.key, change.before || '–', change.after || '–']);
  return [table(title, ['After step', 'Setting', 'Before', 'After'], rows, id)];
}

// Who takes part in a cohort's run, from which step on; nothing if the run is not one of a cohort.
function cohortTable(run, title, id) {
  if (!run.cohort) return [];
  const { members, attendance } = run.cohort;
  const head = ['From step', ...members.map(({ name, samples }) => name + ' (' + countText(samples, 'sample') + ')')];
  const rows = attendance.map(({ first_step: step, present }) => [String(step), ...members.map((_, m) => (present.includes(m) ? 'takes part' : '–'))]);
  return [table(title, head, rows, id)];
}

// For whom the members of a cohort wait; nothing if for nobody.
function waitingCard(page, run) {
  const names = page.live && run.cohort && !run.ended ? run.cohort.waits_for : [];
  if (names.length === 0) return [];
  const text = 'The members wait for ' + names.join(', ') + (names.length === 1 ? ', whose connection has broken.' : ', whose connections have broken.');
  return [element('div', { class: 'card words', id: 'waiting' }, element('h3', {}, 'Waiting'), element('p', {}, text))];
}

// The bytes of the model, which are part of all bytes; empty if there are none.
function modelText(h) {
  const bytes = (h.model_bytes_up || 0) + (h.model_bytes_down || 0);
  return bytes > 0 ? ', ' + units.bytes.text(bytes) + ' of them for the model' : '';
}

function headlineOfOne(page) {
  const run = page.runs[0], h = run.headline;
  const known = (value, text) => (value === undefined ? '–' : text(value));
  const tiles = element('div', { class: 'tiles' }, metricTile(h, known), ...targetTiles(h),
    tile('Time', known(h.seconds, durationText), known(h.steps, (steps) => steps + ' steps, ') +
         known(h.images_per_second, (v) => significant(v, 4) + ' samples/s'), 'time'),
    tile('Bytes', known(h.ratio, (v) => significant(v, 3) + ' ×'), 'the raw tensor size; ' +
         known(h.bytes_up, units.bytes.text) + ' up, ' + known(h.bytes_down, units.bytes.text) + ' down' + modelText(h), 'ratio'),
    tile('Bandwidth of tensors, mean', known(h.mean_up_bytes_per_second, units.rate.text),
         'up; ' + known(h.mean_down_bytes_per_second, units.rate.text) + ' down', 'bandwidth'),
    tile('Bound', known(h.over_bound, (v) => significant(v) + ' ×'), h.over_bound === undefined ? 'unknown' :
         'a step took ' + units.seconds.text(h.bounded_seconds_per_step) + '; the estimated minimum is ' + units.seconds.text(h.bound_seconds_per_step), 'bound'));
  const cards = [...progressCard(page), tiles, ...waitingCard(page, run), ...interruptionCard(run), ...cohortTable(run, 'Members', 'cohort'),
    ...changeTable(run, 'Changed settings', 'changes')];
  if (!h.bottleneck) return cards;
  return [...cards, element('div', { class: 'card words', id: 'bottleneck' },
    element('h3', {}, 'Bottleneck: ' + h.bottleneck), element('p', {}, h.words),
    ...(h.advice ? [element('p', { id: 'advice' }, h.advice[0].toUpperCase() + h.advice.slice(1))] : []))];
}

// Returns a difference such as "+25 %", relative to the reference.
function relativeTo(value, reference) {
  if (!reference) return '';
  const change = value / reference - 1;
  return Math.abs(change) < 0.0005 ? '±0 %' : (change > 0 ? '+' : '−') + significant(100 * Math.abs(change)) + ' %';
}

// Returns the difference of two shares in percentage points, such as "+1.25 points".
function pointsApart(value, reference) {
  return (value > reference ? '+' : '−') + (100 * Math.abs(value - reference)).toFixed(2) + ' points';
}

// Settings that experiments vary: runs are comparable even if these settings differ.
const variedSettings = /^(data\.augment|data\.(train\.)?transforms|model\.(cuts|dropout|lora))\b/;
const lossSettings = /^train\.loss\b/;

// Returns the reason why the figures of two runs are not comparable; '' if they are. `isLoss`: the
// figures are losses, so the settings of the loss must be equal too.
function obstacle(run, other, isLoss) {
  if (run.cohort && other.cohort && run.cohort.id === other.cohort.id) return '';  // their metrics are those of all members
  const ours = new Map(run.config), theirs = new Map(other.config);
  const keys = [...new Set([...ours.keys(), ...theirs.keys()])].filter((key) =>
    (/^(data|model)\./.test(key) && !variedSettings.test(key)) || (isLoss && lossSettings.test(key)));
  const different = keys.filter((key) => ours.get(key) !== theirs.get(key));
  if (run.headline.metric_name !== other.headline.metric_name) different.push('main metric');
  return different.length === 0 ? '' : 'different ' + different.slice(0, 2).join(', ') + (different.length > 2 ? ', …' : '');
}

// `reason`: why the two values are not comparable; '' if they are. If there is a reason, the
// difference has no colour.
function change(value, reference, better, apart, reason) {
  if (typeof value !== 'number' || typeof reference !== 'number' || value === reference) return '';
  const good = better && (better === 'more') === (value > reference);
  const made = element('span', { class: 'change' + (better && !reason ? (good ? ' good' : ' bad') : '') }, apart(value, reference));
  if (reason) made.title = 'Not comparable: ' + reason;
  return made;
}

function headlineOfMany(runs, reference) {
  const rows = [];
  for (const [key, name, text, better, apart] of [...metricFigures(runs), ...figures, ...(runs.some(wasInterrupted) ? interruptionFigures : [])]) {
    if (runs.every((run) => run.headline[key] === undefined)) continue;
    const base = runs[reference].headline[key];
    const isMixed = key.endsWith('metric') && !apart;
    rows.push([name, ...runs.map((run, i) => {
      const value = run.headline[key];
      if (value === undefined) return '–';
      const reason = obstacle(run, runs[reference], key === 'eval_loss');
      return element('span', {}, text(value, run.headline), ' ',
                     i === reference || isMixed ? '' : change(value, base, better, apart || relativeTo, reason));
    })]);
  }
  return table('Figures, with differences from ' + runs[reference].short, ['', ...runs.map((run) => run.short)], rows, 'compared');
}

function stateText(page, run) {
  const h = run.headline;
  if (run.ended) return run.completed ? 'finished' : 'stopped early';
  const done = h.total_steps ? Math.floor(100 * (h.steps || 0) / h.total_steps) + ' %' : placeText(h);
  const left = page.live && h.seconds_left !== undefined ? ', ' + clockText(h.seconds_left) + ' left' : '';
  return (page.live ? 'running, ' : 'not finished, ') + done + left;
}

// The codecs of the flows, without duplicates.
function codecText(run) {
  const codecs = run.flows.filter((flow) => flows.includes(flow.flow)).map((flow) => flow.codec);
  return [...new Set(codecs)].join(', ');
}

// The columns of the list of runs. Each has an id, a title, a function that returns the value to
// sort by, and a function that formats the value (optional).
const runColumns = [
  ['name', 'Name', (run) => run.name],
  ['metric', 'Metric, best', (run) => run.headline.best_metric, (v, run) => units[run.headline.metric_unit].text(v)],
  ['loss', 'Loss', (run) => run.headline.eval_loss ?? run.headline.train_loss, (v) => units.nats.text(v)],
  ['bytes', 'Bytes', (run) => (run.headline.bytes_up || 0) + (run.headline.bytes_down || 0), (v) => units.bytes.text(v)],
  ['seconds', 'Time', (run) => run.headline.seconds, (v) => durationText(v)],
  ['codec', 'Codec', codecText],
  ['started', 'Started (UTC)', (run) => run.headline.started, (v) => v.replace('T', ' ').replace(/(\.\d+)?Z/, '')],
  ['state', 'State', (run, page) => stateText(page, run)],
];

// The list of runs, sorted by order.column. The charts and tables below it keep the order in which
// the runs were given.
function runTable(page, reference, order, choose, sort) {
  const runs = page.runs;
  const shown = runs.map((run, i) => ({ run, i }));
  const column = runColumns.find(([id]) => id === order.column);
  if (column) {
    const valueOf = ({ run }) => column[2](run, page);
    const compare = (one, other) => (typeof one === 'number' ? one - other : String(one).localeCompare(String(other)));
    shown.sort((one, other) => {
      const [a, b] = [valueOf(one), valueOf(other)];
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return (order.isDown ? -1 : 1) * compare(a, b);
    });
  }
  const title = runs.every((run) => run.headline.metric_name === runs[0].headline.metric_name) && runs[0].headline.metric_name
    ? runs[0].headline.metric_title + ', best' : 'Metric, best';
  const head = runColumns.map(([id, name]) => {
    const sorted = id === order.column;
    const button = element('button', { type: 'button', class: 'sort', id: 'sort-' + id },
                           (id === 'metric' ? title : name) + (sorted ? (order.isDown ? ' ↓' : ' ↑') : ''));
    button.addEventListener('click', () => sort(id));
    return element('th', { scope: 'col', 'aria-sort': sorted ? (order.isDown ? 'descending' : 'ascending') : 'none' }, button);
  });
  const rows = shown.map(({ run, i }) => {
    const radio = element('input', { type: 'radio', name: 'reference', id: 'reference-' + i });
    radio.checked = i === reference;
    radio.addEventListener('change', () => choose(i));
    const reason = obstacle(run, runs[reference], false);
    const cells = runColumns.slice(1).map(([, , valueOf, text = String]) => {
      const value = valueOf(run, page);
      return element('td', {}, value === undefined || value === '' ? '–' : text(value, run));
    });
    const name = element('span', { class: 'run-name' }, radio, element('label', { for: 'reference-' + i, title: run.folder }, swatch(i), element('b', {}, run.short)));
    return element('tr', {}, element('th', { scope: 'row' }, name, ...(reason ? [element('p', { class: 'muted reason' }, 'not comparable: ' + reason)] : [])), ...cells);
  });
  const texts = () => [runColumns.map(([, name]) => name), ...shown.map(({ run }) => runColumns.map(([, , valueOf]) => valueOf(run, page) ?? ''))];
  const body = element('table', {}, element('thead', {}, element('tr', {}, ...head)), element('tbody', {}, ...rows));
  return element('div', { class: 'card table', id: 'runs' },
    element('div', { class: 'card-head' }, element('h3', {}, 'Runs'), csvButton('Runs', 'cleave-runs', texts)),
    element('p', { class: 'muted' }, 'The figures below are compared with the run that is selected here.'),
    element('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Runs' }, body));
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
  const add = (key, name, settings) => {
    if (settings.length > 0) tables.push(table(name + suffix, ['Key', 'Value'], settings, key + id));
  };
  add('config', 'Configuration', run.config);
  add('environment', 'Client', run.environment);
  const { servers, shown } = run.server_steps;
  run.server_environments.forEach((settings, i) => {
    add(i === 0 ? 'server_environment' : 'server' + (i + 1) + '_environment', servers === 1 && shown.length === 1 ? 'Server' : 'Server ' + shown[i], settings);
  });
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
