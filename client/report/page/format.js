// Formats numbers for display. Input is in bytes, seconds and shares.

function significant(value, digits = 3) {
  if (value === 0) return '0';
  const size = Math.floor(Math.log10(Math.abs(value)));
  return value.toFixed(Math.min(9, Math.max(0, digits - 1 - size)));
}

// Formats the value of a tick, which is already round.
function plain(value) {
  return String(Number(value.toPrecision(6)));
}

// The step of a value: its factor and unit. A size that would round up to 1000 uses the next unit.
function stepOf(value, steps) {
  return steps.find(([factor]) => Math.abs(value) >= factor * 0.9995) || steps[steps.length - 1];
}

function scaled(value, steps, digitsOf) {
  const [factor, unit] = stepOf(value, steps);
  return digitsOf(value / factor) + ' ' + unit;
}

// Returns "81.86 ± 0.28": the std has two significant digits, and the mean ends at the same place, with
// at most four significant digits. As spreadText() in spread.cpp.
function spreadNumbers(mean, std) {
  const places = (value, digits) => digits - 1 - Math.floor(Math.log10(Math.abs(value)));
  let decimals = std > 0 ? places(Number(std.toPrecision(2)), 2) : Infinity;
  if (mean !== 0) decimals = Math.min(decimals, places(mean, 4));
  if (!(std >= 0.5 * 10 ** -decimals)) return significant(mean, 4) + ' ± 0';
  const text = (value) => (Math.round(value * 10 ** decimals) / 10 ** decimals).toFixed(Math.max(0, decimals));
  return text(mean) + ' ± ' + text(std);
}

// Mean and std in the same unit, an entry of `units`.
function spreadText(spread, unit) {
  if (!spread) return '–';
  if (spread.std === null) return units[unit].text(spread.mean);
  const [factor, suffix] = units[unit].step(spread.mean);
  return spreadNumbers(spread.mean / factor, spread.std / factor) + suffix;
}

const byteSteps = [[1e12, 'TB'], [1e9, 'GB'], [1e6, 'MB'], [1e3, 'kB'], [1, 'B']];
const secondSteps = [[1, 's'], [1e-3, 'ms'], [1e-6, 'µs'], [1e-9, 'ns']];

function clockText(seconds) {
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, '0');
  const minutes = Math.floor(whole / 60) % 60;
  if (whole < 3600) return Math.floor(whole / 60) + ':' + two(whole % 60);
  return Math.floor(whole / 3600) + ':' + two(minutes) + ':' + two(whole % 60);
}

function durationText(seconds) {
  return seconds < 59.95 ? seconds.toFixed(seconds < 9.995 ? 2 : 1) + ' s' : clockText(seconds);
}

// For each unit: the text of a value in a legend, and its text at a tick. For units of figures with a
// std also the step of a value: the factor of the unit that it is shown in, and that unit.
const units = {
  rate: {
    text: (v) => scaled(v, byteSteps, significant) + '/s',
    tick: (v) => (v === 0 ? '0' : scaled(v, byteSteps, plain) + '/s'),
    step: (v) => [stepOf(v, byteSteps)[0], ' ' + stepOf(v, byteSteps)[1] + '/s'],
  },
  bytes: {
    text: (v) => scaled(v, byteSteps, significant),
    tick: (v) => (v === 0 ? '0' : scaled(v, byteSteps, plain)),
    step: (v) => [stepOf(v, byteSteps)[0], ' ' + stepOf(v, byteSteps)[1]],
  },
  seconds: {
    text: (v) => (v === 0 ? '0 s' : scaled(v, secondSteps, significant)),
    tick: (v) => (v === 0 ? '0' : scaled(v, secondSteps, plain)),
    step: (v) => [stepOf(v, secondSteps)[0], ' ' + stepOf(v, secondSteps)[1]],
  },
  share: { text: (v) => significant(100 * v) + ' %', tick: (v) => plain(100 * v) + ' %', step: () => [0.01, ' %'] },
  decibel: { text: (v) => v.toFixed(1) + ' dB', tick: (v) => plain(v) + ' dB' },
  number: { text: (v) => significant(v, 4), tick: plain, step: () => [1, ''] },
  nats: { text: (v) => significant(v, 4), tick: plain, step: () => [1, ''] },
  times: { text: (v) => significant(v) + ' ×', tick: plain, step: () => [1, ' ×'] },
  count: { text: (v) => String(Math.round(v)), tick: (v) => (Number.isInteger(v) ? String(v) : '') },
};

// The horizontal axes.
const axes = {
  time: {
    title: 'time since the run began',
    text: durationText,
    tick: (x) => (x < 60 ? plain(x) + ' s' : clockText(x)),
  },
  step: { title: 'training step', text: (x) => 'step ' + plain(x), tick: plain },
};
