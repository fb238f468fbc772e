// Converts a run's series to points on the axis that is shown. The series are stored on a grid of
// time or steps.

// The middle of bucket k. If a bucket has only one step, this is exactly the step.
function middle(k, grid, width) {
  return grid === 'step' ? k * width + (width - 1) / 2 : (k + 0.5) * width;
}

// Linear interpolation between the points (from[i], to[i]); constant outside them.
function interpolate(x, from, to) {
  if (from.length === 0) return null;
  if (from.length === 1) return to[0];
  let low = 0, high = from.length - 1;
  while (high - low > 1) {
    const half = (low + high) >> 1;
    if (from[half] <= x) low = half; else high = half;
  }
  const span = from[high] - from[low];
  const t = span > 0 ? (x - from[low]) / span : 0;
  return to[low] + Math.min(1, Math.max(0, t)) * (to[high] - to[low]);
}

// Returns [steps, times] of a run, both in ascending order.
function clockOf(run, grids) {
  const clock = run.series.clock;
  if (!clock) return [[], []];
  return [clock.k.map((k) => middle(k, 'step', grids.step)), clock.mean];
}

function toAxis(x, native, axis, clock) {
  if (native === axis) return x;
  return axis === 'time' ? interpolate(x, clock[0], clock[1]) : interpolate(x, clock[1], clock[0]);
}

// Returns [{x, mean, min, max}] in ascending order of x. Points in the same bucket of the other
// axis are merged.
function seriesPoints(run, series, axis, grids) {
  const native = series.grid === 'step' ? 'step' : 'time';
  const clock = native === axis ? null : clockOf(run, grids);
  const points = [];
  let cell = null, weight = 0;
  series.k.forEach((k, i) => {
    let x = middle(k, series.grid, grids[series.grid]);
    const mean = series.mean[i];
    const min = series.min ? series.min[i] : mean, max = series.max ? series.max[i] : mean;
    if (clock) {
      x = toAxis(x, native, axis, clock);
      if (x === null) return;
      const k = Math.floor(x / grids[axis] + (axis === 'step' ? 0.5 : 0));
      const last = points[points.length - 1];
      if (k === cell) {
        last.mean = (last.mean * weight + mean) / (weight + 1);
        last.min = Math.min(last.min, min);
        last.max = Math.max(last.max, max);
        ++weight;
        return;
      }
      cell = k;
      weight = 1;
      x = middle(k, axis, grids[axis]);
      if (last && x <= last.x) return;
    }
    points.push({ x, mean, min, max });
  });
  return points;
}

// The evaluations, each at its position on the axis.
function evaluationPoints(run, figure, axis) {
  return run.evaluations.filter((one) => one[figure] !== undefined).map((one) => {
    const value = one[figure];
    return { x: one[axis], mean: value, min: value, max: value };
  });
}

// The resumes and reconnects of a run, each at its position on the axis. The last resume from a step names the members of the
// cohort that did not take part from then on, or did so again.
function interruptionMarks(run, axis) {
  const marks = run.interruptions.map((one) => ({ x: one[axis], isSolid: one.kind === 'resume', step: one.step, text: '' }));
  const { members, attendance } = run.cohort || { attendance: [] };
  attendance.slice(1).forEach(({ first_step: step, present }, k) => {
    const mark = marks.findLast((one) => one.isSolid && one.step === step - 1);
    const change = (from, to, sign) => from.filter((m) => !to.includes(m)).map((m) => sign + members[m].name);
    const before = attendance[k].present;
    if (mark) mark.text = [...change(before, present, '\u2212'), ...change(present, before, '+')].join(' ');
  });
  return marks;
}

// The spans of an axis that a line must not cross: pauses before a resume, or on the axis of steps the
// place from which steps were redone. Between buckets of steps, which have their middles at integers or
// halves, there is room for a span of a half.
function gapsOf(run, axis) {
  return run.interruptions.filter((one) => one.kind === 'resume')
    .map((one) => (axis === 'time' ? [one.since, one.time] : [one.step + 0.25, one.step + 0.75]));
}

// Breaks a line at the gaps. dygraphs draws no line to NaN; areas of a stacked chart, which cannot have
// NaN, fall to 0.
function withGaps(points, gaps, isStacked) {
  const kept = points.filter(({ x }) => !gaps.some(([from, to]) => x > from && x < to));
  if (kept.length < 2) return kept;
  const value = isStacked ? 0 : NaN;
  const isInside = ([from]) => kept[0].x <= from && from < kept[kept.length - 1].x;
  const breaks = gaps.filter(isInside).flatMap(([from, to]) => {
    const inset = (to - from) / 100;
    return [from + inset, to - inset].map((x) => ({ x, mean: value, min: value, max: value, isBreak: true }));
  });
  return [...kept, ...breaks].sort((one, other) => one.x - other.x);
}

// Exponential smoothing as in TensorBoard, corrected for the bias towards the first values. `weight`:
// from 0 (none) to less than 1. Each point keeps its value as `raw`.
function smoothed(points, weight) {
  let sum = 0, bias = 1;
  return points.map((point) => {
    if (point.isBreak) return { ...point, raw: NaN };
    sum = weight * sum + (1 - weight) * point.mean;
    bias *= weight;
    return { ...point, mean: sum / (1 - bias), raw: point.mean };
  });
}

// Returns rows for dygraphs: [x, then for each list its value or null]. `value` maps a point to its
// value.
function joinPoints(lists, value) {
  const rows = new Map();
  lists.forEach((points, i) => {
    for (const point of points) {
      if (!rows.has(point.x)) rows.set(point.x, [point.x, ...lists.map(() => null)]);
      rows.get(point.x)[i + 1] = value(point);
    }
  });
  return [...rows.values()].sort((one, other) => one[0] - other[0]);
}
