// The definitions of the charts: their lines, and where the data of each line comes from.

const sections = ['training', 'steps', 'link', 'bytes'];
const flows = ['activation/0', 'gradient/1', 'activation/1', 'gradient/0'];

// `servers`: the number of servers whose steps are shown.
function chartsOf(servers) {
  const sides = Array.from({ length: servers }, (_, i) => ({ key: i === 0 ? 'server' : 'server' + (i + 1), name: servers === 1 ? 'server' : 'server ' + (i + 1) }));
  const ofServers = (label, kind, series) => sides.map(({ key, name }) => ({ label: label(name), [kind]: key + series }));
  return [
    { id: 'loss', section: 'training', title: 'Loss', unit: 'nats',
      note: 'Each training step, and each evaluation.',
      lines: [{ label: 'training', series: 'loss' }, { label: 'evaluation', evaluation: 'loss' }] },
    // The chart's title and unit are those of the runs' main metric.
    { id: 'metric', section: 'training', ofMetric: true, note: 'The main metric: each training step, and each evaluation.',
      lines: [{ label: 'training', series: 'metric' }, { label: 'evaluation', evaluation: 'metric' }] },
    { id: 'learning-rate', section: 'training', title: 'Learning rate', unit: 'number', zero: true, plain: true,
      note: 'The learning rate of each training step.', lines: [{ label: 'learning rate', series: 'learning_rate' }] },
    { id: 'gradient-norm', section: 'training', title: 'Gradient norm', unit: 'number', zero: true,
      note: 'L2 norm of all gradients of a step, before clipping.', lines: [{ label: 'gradient norm', series: 'gradient_norm' }] },

    { id: 'step-time', section: 'steps', title: 'Time of a step', unit: 'seconds', zero: true, wide: true,
      note: 'The duration of each step, and the estimated minimum with the same computers and link and the best order of actions.',
      lines: [{ label: 'step', series: 'step_seconds' }, { label: 'bound (estimate)', series: 'bound_seconds' }] },
    split('client', 'The client’s step'),
    ...sides.map(({ key, name }) => split(key, servers === 1 ? 'The server’s step' : 'The step of ' + name)),

    { id: 'bandwidth', section: 'link', title: 'Bandwidth, by second', unit: 'rate', zero: true,
      note: 'Bytes of tensors in each second, without those of the model. Seconds without transfers have 0; pauses before a resume are left out.',
      lines: [{ label: 'up', series: 'bytes_up' }, { label: 'down', series: 'bytes_down' }] },
    { id: 'transfers', section: 'link', title: 'Bandwidth of single transfers', unit: 'rate', log: true,
      note: 'A tensor’s bytes divided by its seconds on the wire. Small tensors fit into buffers and can appear faster than the link.',
      lines: [{ label: 'up', series: 'transfer_up' }, { label: 'down', series: 'transfer_down' }] },
    { id: 'rate-distribution', section: 'link', title: 'Distribution of transfer bandwidth', unit: 'share', histogram: 'rate',
      zero: true, note: 'Share of the transfers in each bin.',
      lines: [{ label: 'up', histogram: 'transfer_rates_up' }, { label: 'down', histogram: 'transfer_rates_down' }] },
    { id: 'transfer-time', section: 'link', title: 'Distribution of transfer time', unit: 'share', histogram: 'seconds',
      zero: true, note: 'The time from sending a tensor to receiving it: encoding, queue, wire and decoding.',
      lines: [{ label: 'up', histogram: 'transfer_seconds_up' }, { label: 'down', histogram: 'transfer_seconds_down' }] },
    { id: 'latency-distribution', section: 'link', title: 'Distribution of latency', unit: 'share', histogram: 'seconds', zero: true,
      note: 'The one-way latency of the idle link, per step, and the round trip that the kernels measure under load.',
      lines: [{ label: 'one way', histogram: 'latencies' }, { label: 'round trip, client', histogram: 'client_round_trips' },
              ...ofServers((name) => 'round trip, ' + name, 'histogram', '_round_trips')] },
    { id: 'round-trip', section: 'link', title: 'Round trip', unit: 'seconds', log: true,
      note: 'The kernels’ smoothed round trip, which grows when a queue fills.',
      lines: [{ label: 'client', series: 'client_round_trip' }, ...ofServers((name) => name, 'series', '_round_trip')] },
    { id: 'delivery', section: 'link', title: 'Kernel’s delivery rate', unit: 'rate', log: true,
      note: 'TCP’s estimate of each side’s sending rate, over its latest packets.',
      lines: [{ label: 'client sends', series: 'client_delivery' }, ...ofServers((name) => name + ' sends', 'series', '_delivery')] },
    { id: 'retransmits', section: 'link', title: 'Retransmits', unit: 'count', zero: true,
      note: 'Segments retransmitted since the connection began.',
      lines: [{ label: 'client', series: 'client_retransmits' }, ...ofServers((name) => name, 'series', '_retransmits')] },

    { id: 'snr', section: 'bytes', title: 'Codec error', unit: 'decibel', wide: true,
      note: 'Signal-to-noise ratio of the measured tensors, per flow: 20 dB is an error of 10 %, 40 dB of 1 %.',
      none: 'No codec error was measured: the codecs are lossless, or metrics.error_every is 0.',
      lines: flows.map((flow) => ({ label: flow, series: 'snr ' + flow })) },
  ];
}

// Where the figures of the server's step come from, if not from the server's own folder.
function serverSource(run) {
  const { from, servers, shown } = run.server_steps;
  if (from !== 'client') return shown.length === 1 && servers > 1 ? 'Server ' + shown[0] + ' of ' + servers + '.' : '';
  return 'Drawn from the client’s rows, in which the server’s update counts as waiting.' +
    (servers > 1 ? ' Means of the ' + servers + ' servers.' : '') +
    ' The server’s folder adds the update, its kernel’s figures and its environment: cleave-client report RUN --server-run DIR.';
}

function split(side, title) {
  return {
    id: side + '-split', section: 'steps', title, unit: 'seconds', zero: true, stacked: true,
    note: 'Mean times. Codec time counts only while this side does not compute. Wire time counts only while this side neither computes nor runs a codec. The rest is waiting.',
    about: side === 'client' ? undefined : serverSource,
    // The last line is at the bottom of the stack.
    lines: [['waiting', 6], ['wire', 2], ['codec', 1], ['compute', 0]].map(([part, tone]) =>
      ({ label: part, series: side + '_' + part, tone })),
  };
}

// Returns the points of one line of a chart, for one run.
function pointsOfLine(run, line, axis, grids) {
  if (line.evaluation) return evaluationPoints(run, line.evaluation, axis);
  if (line.histogram) return histogramPoints(run.histograms[line.histogram]);
  const series = run.series[line.series];
  return series ? seriesPoints(run, series, axis, grids) : [];
}

// Returns one point per bin: x is the logarithm of the bin's lower bound, and y is the bin's share.
// The last point has the share 0.
function histogramPoints(histogram) {
  if (!histogram || histogram.from.length === 0) return [];
  const place = (value) => Math.round(10 * Math.log10(value)) / 10;
  const point = (x, share) => ({ x, mean: share, min: share, max: share });
  const points = histogram.from.map((from, i) => point(place(from), histogram.count[i] / histogram.rows));
  points.unshift(point(place(histogram.from[0]) - 0.1, 0));
  points.push(point(place(histogram.until), 0));
  return points;
}

// Returns "median 4.1 ms (90 %: 2.0 ms – 9.1 ms)".
function quantileText(run, line, unit) {
  const histogram = line.histogram && run.histograms[line.histogram];
  if (!histogram || !histogram.p50) return '';
  const text = units[unit].text;
  return 'median ' + text(histogram.p50) + ' (90 %: ' + text(histogram.p5) + ' – ' + text(histogram.p95) + ')';
}

function histogramAxis(unit) {
  return {
    title: unit === 'rate' ? 'bandwidth, logarithmic' : 'time, logarithmic',
    text: (x) => units[unit].text(10 ** x) + ' – ' + units[unit].text(10 ** (x + 0.1)),
    tick: units[unit].tick,
    ticker: decades(units[unit], 84),
    csv: (x) => Number((10 ** x).toPrecision(6)),
  };
}

// For one run, returns one panel per chart, with all lines of the chart. For several runs, returns
// one panel per line of the chart, and this panel has a line for each run. A stacked chart gets one
// panel per run.
function panelsOf(chart, runs) {
  if (runs.length === 1) return [{ spec: chart, parts: chart.lines.map((line) => ({ run: 0, line, label: line.label })) }];
  const narrow = { ...chart, wide: false };
  if (chart.stacked) {
    return runs.map((run, i) => ({
      spec: { ...narrow, id: chart.id + '-' + (i + 1), title: chart.title + ': ' + run.short },
      parts: chart.lines.map((line) => ({ run: i, line, label: line.label })),
      order: i + 1,
    }));
  }
  const one = chart.lines.length === 1;
  return chart.lines.map((line) => ({
    spec: {
      ...narrow,
      id: one ? chart.id : chart.id + '-' + line.label.replaceAll(/[^a-z0-9]+/g, '-'),
      title: one ? chart.title : chart.title + ': ' + line.label,
    },
    parts: runs.map((run, i) => ({ run: i, line, label: run.short })),
  }));
}

// The chart of the runs' main metric. There is no such chart if the runs have different metrics.
function metricPanels(chart, runs) {
  const { metric_name: name, metric_title: title, metric_unit: unit } = runs[0].headline;
  if (!name || runs.some((run) => run.headline.metric_name !== name)) return [];
  return panelsOf({ ...chart, title, unit }, runs);
}

// Returns the panels of all charts. Panels that show a single run are last in their section,
// ordered by run.
function allPanels(runs) {
  const servers = Math.max(1, ...runs.map((run) => run.server_steps.from === 'client' ? 1 : run.server_steps.shown.length));
  const all = chartsOf(servers).flatMap((chart) => (chart.ofMetric ? metricPanels(chart, runs) : panelsOf(chart, runs)));
  return sections.flatMap((section) => all.filter((one) => one.spec.section === section)
    .sort((one, other) => (one.order || 0) - (other.order || 0)));
}
