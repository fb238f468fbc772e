// Builds the page, and updates it while a live server provides new data.

const byId = (id) => document.getElementById(id);
const pollMilliseconds = 1000;

let page = null;       // the data that is shown
let axis = 'time';
let smoothing = 0;     // weight of the earlier points, from 0 to less than 1
let reference = 0;     // index of the run with which the other runs are compared
let order = { column: '', isDown: false };  // sort order of the list of runs; '': the order in which the runs were given
let panels = [];       // [{panel, parts}]
let shownRuns = '';    // key of the runs that `panels` show
const group = new Group((zoomed) => { byId('unzoom').disabled = !zoomed; });

// Removes the common part of the runs' names. The short names are still distinct.
function shorten(runs) {
  const names = runs.map((run) => run.name);
  let common = 0;
  if (names.length > 1) {
    while (names.every((name) => name[common] !== undefined && name[common] === names[0][common])) ++common;
    common = names[0].lastIndexOf('-', common - 1) + 1;
  }
  runs.forEach((run, i) => { run.short = run.name.slice(common) || run.name; });
}

function buildPanels() {
  for (const { panel } of panels) panel.drop();
  panels = [];
  group.panels = [];
  for (const section of sections) byId(section).querySelector('.grid').replaceChildren();
  for (const { spec, parts } of allPanels(page.runs)) {
    const panel = new Panel(spec, spec.histogram ? null : group, () => drawCharts());
    byId(spec.section).querySelector('.grid').append(panel.card);
    panels.push({ panel, parts });
  }
}

// The maximum of a chart's lines at each x; for a stacked chart, their sum.
function heightsOf({ panel, lines }) {
  const stacked = panel.spec.stacked;
  const rows = joinPoints(lines.map((line) => line.points), (point) => (stacked ? point.mean : point.max));
  const height = stacked ? (all, value) => all + (value || 0) : (all, value) => Math.max(all, value || 0);
  return rows.map((row) => row.slice(1).reduce(height, 0));
}

// The range of an axis. A step that loads libraries can take a hundred times as long as the others,
// which would flatten the lines. If the highest 2 % of the values (or the highest value) are far
// above the rest, the axis ends below them.
function scaleOf(heights) {
  const sorted = [...heights].sort((one, other) => one - other);
  const max = sorted[sorted.length - 1] || 0;
  const usual = sorted[Math.floor(0.98 * (sorted.length - 1))] || 0;
  return usual > 0 && max > 4 * usual ? { top: 1.3 * usual, isCut: true } : { top: 1.05 * max, isCut: false };
}

// Sets the vertical axes of the charts of steps. Stacked charts of several runs share one scale, so
// that they can be compared.
function scaleSteps(drawn) {
  const steps = drawn.filter(({ panel }) => panel.spec.section === 'steps').map((one) => ({ ...one, heights: heightsOf(one) }));
  const stacks = steps.filter(({ panel }) => panel.spec.stacked);
  const shared = page.runs.length > 1 ? scaleOf(stacks.flatMap(({ heights }) => heights)) : null;
  for (const { panel, heights, about } of steps) {
    const common = panel.spec.stacked ? shared : null;
    const { top, isCut } = common || scaleOf(heights);
    panel.valueRange = isCut || (common && top > 0) ? [0, top] : null;
    const beyond = isCut && !panel.log ? heights.filter((height) => height > top) : [];
    const cut = beyond.length === 0 ? '' : (beyond.length === 1 ? '1 point is' : beyond.length + ' points are') +
                                           ' beyond the top, up to ' + units.seconds.text(Math.max(...beyond)) + '.';
    panel.remark([cut, about].filter(Boolean).join(' '));
  }
}

function drawCharts() {
  const drawn = panels.map(({ panel, parts }) => {
    const chart = panel.spec;
    const several = page.runs.length > 1 && !chart.stacked;
    const lines = parts.map(({ run, line, label }, i) => ({
      label,
      index: several ? run : line.tone ?? i,
      points: chart.histogram ? pointsOfLine(page.runs[run], line, axis, page.grids)
        : withGaps(pointsOfLine(page.runs[run], line, axis, page.grids), gapsOf(page.runs[run], axis), chart.stacked),
      smoothed: smoothing > 0 && Boolean(line.series) && !chart.stacked && !chart.plain,
      band: Boolean(line.series) && !chart.stacked,
      dots: Boolean(line.evaluation),
      summary: chart.histogram ? quantileText(page.runs[run], line, chart.histogram) : '',
    }));
    for (const line of lines) {
      if (line.smoothed) line.points = smoothed(line.points, smoothing);
    }
    const marks = chart.histogram ? [] : [...new Set(parts.map(({ run }) => run))].flatMap((run) =>
      interruptionMarks(page.runs[run], axis).map((mark) => ({ ...mark, index: several ? run : null })));
    const about = chart.about ? chart.about(page.runs[parts[0].run]) : '';
    return { panel, lines: several ? lines : lines.filter((line) => line.points.length > 0), marks, about };
  });
  scaleSteps(drawn);
  for (const { panel, lines, marks } of drawn) {
    panel.marks = marks;
    panel.show(lines, panel.spec.histogram ? histogramAxis(panel.spec.histogram) : axes[axis]);
  }
  group.show(group.window);
}

// Sorts the list of runs by a column; a second call reverses the order.
function sortRuns(column) {
  order = { column, isDown: order.column === column && !order.isDown };
  drawHeadline();
}

// One table per cohort and course of its run: the runs of its members have the same.
function cohortTables(runs) {
  const firsts = new Map();
  for (const run of runs) {
    const key = JSON.stringify(run.cohort);
    if (run.cohort && !firsts.has(key)) firsts.set(key, run);
  }
  return [...firsts.values()].flatMap((run, i) => cohortTable(run, 'Members of ' + run.cohort.id, 'cohort-' + (i + 1)));
}

function drawHeadline() {
  const runs = page.runs;
  const one = runs.length === 1;
  const focused = document.activeElement && document.activeElement.id;
  byId('headline').replaceChildren(...(one ? headlineOfOne(page) : [
    runTable(page, reference, order, (i) => { reference = i; drawHeadline(); }, sortRuns),
    headlineOfMany(runs, reference), ...cohortTables(runs), ...differenceTables(page, runs),
    ...runs.flatMap((run, i) => changeTable(run, 'Changed settings: ' + run.short, 'changes-' + (i + 1)))]));
  if (focused && byId(focused)) byId(focused).focus();
}

function drawTables() {
  const runs = page.runs, one = runs.length === 1;
  const title = one ? runs[0].name : runs.length + ' runs compared';
  document.title = title + ' – Cleave';
  byId('title').textContent = title;
  byId('subtitle').textContent = one ? runs[0].folder : '';
  const problems = problemList(runs);
  byId('problems').hidden = problems.length === 0;
  byId('problems').replaceChildren(...problems);
  drawHeadline();
  byId('flows').replaceChildren(...runs.map((run, i) =>
    flowTable(run, one ? 'Bytes by flow' : 'Bytes by flow: ' + run.short, 'flows-' + (i + 1))));
  drawEvaluations(runs);
  byId('settings-tables').replaceChildren(...runs.flatMap((run, i) =>
    settingTables(run, one ? '' : ': ' + run.short, '-' + (i + 1))));
  const seconds = page.grids.time;
  byId('sampling').textContent = 'Each line has at most about 1,200 points. Each point represents ' +
    units.seconds.text(seconds) + ' or ' + page.grids.step + (page.grids.step === 1 ? ' step' : ' steps') +
    '. The line shows the mean, and the band spans minimum and maximum, so that no peak is lost.';
  byId('written').textContent = (page.live ? 'Last change: ' : 'Written: ') + page.written.replace('T', ' ').replace(/\.\d+Z/, ' UTC') +
    ' by ' + page.software + '.';
  drawState();
}

function drawState(lost = false) {
  const ended = page.runs.every((run) => run.ended);
  const running = page.live && !ended;
  const over = page.runs.every((run) => run.completed) ? 'finished' : 'stopped early';
  byId('state').textContent = lost && !ended ? 'connection lost' : ended ? over : running ? 'running' : 'not finished';
  byId('state').className = 'state ' + (lost && !ended ? 'lost' : ended ? 'ended' : running ? 'running' : 'lost');
}

function show(data) {
  page = data;
  shorten(page.runs);
  const runs = page.runs.map((run) => run.name).join('\n');
  if (runs !== shownRuns) buildPanels();
  shownRuns = runs;
  drawTables();
  drawCharts();
}

function choose(which) {
  axis = which;
  byId('by-time').setAttribute('aria-pressed', String(axis === 'time'));
  byId('by-step').setAttribute('aria-pressed', String(axis === 'step'));
  group.window = null;
  drawCharts();
}

byId('smoothing').addEventListener('input', () => {
  smoothing = Number(byId('smoothing').value);
  byId('smoothing-value').textContent = smoothing.toFixed(2);
  drawCharts();
});
byId('by-time').addEventListener('click', () => choose('time'));
byId('by-step').addEventListener('click', () => choose('step'));
byId('unzoom').addEventListener('click', () => group.show(null));
darkness.addEventListener('change', () => { if (page) { drawCharts(); drawHeadline(); } });

async function follow() {
  try {
    const after = page ? '?after=' + encodeURIComponent(page.version) : '';
    const answer = await fetch('data.json' + after, { cache: 'no-store' });
    if (answer.status === 200) show(await answer.json());
    else if (page && answer.status === 204) drawState();
  } catch (error) {
    if (page) drawState(true);
  }
  setTimeout(follow, pollMilliseconds);
}

const given = JSON.parse(byId('data').textContent);
// Gives tests and the browser's console access to the charts.
window.cleaveReport = { page: () => page, panels: () => panels.map(({ panel }) => panel), group, show };
if (given === null) follow(); else if (given.sweep) showSweep(given.sweep); else show(given);
