// Shows the results of `cleave-client eval`: metrics, scores per class, the confusion matrix, calibration.

const maxMatrix = 30;

function shareOrDash(value) {
  return value === null ? '–' : (100 * value).toFixed(1) + ' %';
}

function classTable(evaluation, title, id) {
  const head = ['Class', 'Samples', 'Precision', 'Recall', 'F1', 'AUROC'];
  const rows = evaluation.classes.map((one) => [one.name, String(one.samples), shareOrDash(one.precision), shareOrDash(one.recall),
    shareOrDash(one.f1), one.auroc === null ? '–' : one.auroc.toFixed(4)]);
  return table(title, head, rows, id);
}

// Rows are the true classes; the shade of a cell is its share of the row.
function confusionTable(evaluation, title, id) {
  const names = evaluation.classes.map((one) => one.name);
  const cells = evaluation.confusion.map((counts, target) => {
    const sum = counts.reduce((one, other) => one + other, 0);
    return counts.map((count, predicted) => {
      const share = sum ? count / sum : 0;
      const cell = element('span', { class: 'cell' + (target === predicted ? ' right' : ''), title: count + ' of class ' + names[target] + ' predicted as ' + names[predicted] },
                           count ? String(count) : '·');
      cell.style.setProperty('--share', share.toFixed(3));
      return cell;
    });
  });
  const made = table(title, ['Class ↓, predicted →', ...names], cells.map((row, i) => [names[i], ...row]), id);
  made.classList.add('confusion');
  return made;
}

// The share of correct predictions by confidence. On the diagonal, share and confidence are equal.
function calibrationCard(evaluation, title, id) {
  const size = 220, edge = 34, right = 24;  // right: half of the last label
  const space = 'http://www.w3.org/2000/svg';
  const make = (name, attributes, text) => {
    const made = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  };
  const x = (value) => edge + value * size, y = (value) => 8 + (1 - value) * size;
  const picture = make('svg', { viewBox: '0 0 ' + (edge + size + right) + ' ' + (size + edge + 8), role: 'img', 'aria-label': title, class: 'calibration' });
  picture.append(make('rect', { x: x(0), y: y(1), width: size, height: size, class: 'frame' }));
  const width = 1 / evaluation.bins.length;
  for (const bin of evaluation.bins.filter((one) => one.samples > 0)) {
    const rect = make('rect', { x: x(bin.from) + 1, width: size * width - 2, y: y(bin.accuracy), height: Math.max(1, size * bin.accuracy), class: 'bin' });
    rect.append(make('title', {}, bin.samples + ' samples: confidence ' + shareOrDash(bin.confidence) + ', correct ' + shareOrDash(bin.accuracy)));
    picture.append(rect);
  }
  picture.append(make('line', { x1: x(0), y1: y(0), x2: x(1), y2: y(1), class: 'diagonal' }));
  for (const value of [0, 0.5, 1]) {
    picture.append(make('text', { x: x(value), y: y(0) + 14, 'text-anchor': 'middle' }, 100 * value + ' %'));
    picture.append(make('text', { x: x(0) - 4, y: y(value) + 4, 'text-anchor': 'end' }, String(100 * value)));
  }
  picture.append(make('text', { x: x(0.5), y: y(0) + 30, 'text-anchor': 'middle' }, 'confidence'));
  const head = ['From', 'Samples', 'Confidence', 'Correct'];
  const texts = () => [head, ...evaluation.bins.map((bin) => [bin.from, bin.samples, bin.confidence, bin.accuracy])];
  return element('div', { class: 'card', id },
    element('div', { class: 'card-head' }, element('h3', {}, title), csvButton(title, 'cleave-' + id, texts)),
    element('p', { class: 'note muted' }, 'The share of correct predictions, by the probability of the predicted class. Mean distance from the diagonal: ' +
            shareOrDash(evaluation.calibration_error) + '.'), picture);
}

// Says which weights were evaluated.
function weightsText(run) {
  const { of, steps, weights } = run.evaluation;
  const evaluated = run.evaluations.find((one) => one.step === steps);
  const after = steps === undefined ? '' : ', after ' + countText(steps, 'step') + (evaluated ? ', epoch ' + evaluated.epoch : '');
  return { current: of, older: 'an older model', unknown: 'unknown' }[weights] + after;
}

function evaluationCards(run, suffix, id) {
  const evaluation = run.evaluation;
  const note = evaluation.note
    ? [element('div', { class: 'card across warning', id: 'evaluation-note' + id },
               element('p', {}, element('b', {}, evaluation.weights === 'older' ? 'An older model' + suffix + '. ' : 'Unknown weights' + suffix + '. '), evaluation.note))] : [];
  const metrics = evaluation.metrics.map(([name, value]) => [name, value === null ? '–' : significant(value, 5)]);
  const confused = evaluation.confused || [];
  const words = evaluation.model + ', ' + evaluation.samples + ' samples';
  const title = (evaluation.weights === 'older' ? 'Evaluation of an older model' : 'Evaluation') + suffix;
  const cards = [...note, table(title, ['Metric', 'Value'], [...metrics, ['model', words], ['weights', weightsText(run)]], 'evaluation' + id)];
  if (!evaluation.classes) return cards;
  cards.push(calibrationCard(evaluation, 'Calibration' + suffix, 'calibration' + id));
  cards.push(classTable(evaluation, 'Classes' + suffix, 'classes' + id));
  if (evaluation.confusion && evaluation.classes.length <= maxMatrix) {
    cards.push(confusionTable(evaluation, 'Confusion' + suffix, 'confusion' + id));
  } else if (confused.length > 0) {
    cards.push(table('Most confused' + suffix, ['Class', 'Predicted as', 'Samples'], confused.map(([count, target, predicted]) => [target, predicted, String(count)]), 'confused' + id));
  }
  return cards;
}

function drawEvaluations(runs) {
  const known = runs.map((run, i) => ({ run, i })).filter(({ run }) => run.evaluation);
  byId('evaluation').hidden = known.length === 0;
  const isCurrent = known.every(({ run }) => run.evaluation.weights === 'current');
  byId('evaluation').querySelector('h2').textContent = isCurrent ? 'Evaluation of the trained model' : 'Evaluation';
  byId('evaluation-cards').replaceChildren(...known.flatMap(({ run, i }) =>
    evaluationCards(run, runs.length === 1 ? '' : ': ' + run.short, '-' + (i + 1))));
}
