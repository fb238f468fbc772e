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

function scaled(value, steps, digitsOf) {
  const size = Math.abs(value);
  for (const [factor, unit] of steps) {
    // A size that would round up to 1000 uses the next unit.
    if (size >= factor * 0.9995) return digitsOf(value / factor) + ' ' + unit;
  }
  const [factor, unit] = steps[steps.length - 1];
  return digitsOf(value / factor) + ' ' + unit;
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

// For each unit: the text of a value in a legend, and its text at a tick.
const units = {
  rate: {
    text: (v) => scaled(v, byteSteps, significant) + '/s',
    tick: (v) => (v === 0 ? '0' : scaled(v, byteSteps, plain) + '/s'),
  },
  bytes: {
    text: (v) => scaled(v, byteSteps, significant),
    tick: (v) => (v === 0 ? '0' : scaled(v, byteSteps, plain)),
  },
  seconds: {
    text: (v) => (v === 0 ? '0 s' : scaled(v, secondSteps, significant)),
    tick: (v) => (v === 0 ? '0' : scaled(v, secondSteps, plain)),
  },
  share: { text: (v) => significant(100 * v) + ' %', tick: (v) => plain(100 * v) + ' %' },
  decibel: { text: (v) => v.toFixed(1) + ' dB', tick: (v) => plain(v) + ' dB' },
  number: { text: (v) => significant(v, 4), tick: plain },
  nats: { text: (v) => significant(v, 4), tick: plain },
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
