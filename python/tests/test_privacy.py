"""The attacks on recorded traffic: each succeeds undefended and fails against constant tensors. Audits: their files, resuming, bad input."""

import csv
import dataclasses
import functools
import io
import json
import pathlib
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

import torch
from torch import nn

from cleave_split.errors import Error
from cleave_split.privacy import ATTACKS, Case, Model, Recording, audit, measures, page, scores
from cleave_split.privacy.__main__ import main
from cleave_split.privacy.epochs import occurrences
from cleave_split.safetensors_file import write_safetensors

SAMPLES, HALF = 240, 120
KNOWN, UNKNOWN = torch.arange(HALF), torch.arange(HALF, SAMPLES)


def of_classes(classes, width=24, seed=0, rarer=0.5):
    """Activations, labels, and the gradients of a linear tail with cross entropy at its start."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (SAMPLES,), generator=generator)
    if classes == 2:
        labels = (torch.rand(SAMPLES, generator=generator) < rarer).long()
    centres = 2 * torch.randn(classes, width, generator=generator)
    activation = centres[labels] + torch.randn(SAMPLES, width, generator=generator)
    weight = 0.1 * torch.randn(classes, width, generator=generator)
    bias = torch.tensor([1.0, -1.0]) if classes == 2 else torch.zeros(classes)
    p = (activation @ weight.T + bias).softmax(1)
    gradient = (p - nn.functional.one_hot(labels, classes)) @ weight / SAMPLES
    return activation, labels, gradient


def seeded(make, seed):
    """make(), with initial weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        nn.init.normal_(self.conv.weight, std=0.3)

    def forward(self, x):
        return torch.tanh(self.conv(x))


def pictures():
    """Bright squares on a dark ground with a slope, and the quarter that each square is in."""
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(SAMPLES, 1, 1, 1, generator=generator) * torch.linspace(0, 0.4, 8).expand(SAMPLES, 1, 8, 8)
    quarters = []
    for image in images:
        y, x = torch.randint(0, 5, (2,), generator=generator).tolist()
        image[0, y : y + 4, x : x + 4] = 0.6 + 0.4 * torch.rand(1, generator=generator)
        quarters.append(2 * (y >= 2) + (x >= 2))
    return images, torch.tensor(quarters)


class Silent(Head):
    """A head whose activations do not depend on its inputs."""

    def forward(self, x):
        return 0 * super().forward(x) + 0.25


@functools.lru_cache(maxsize=None)
def trained():
    """Head, body and tail of a model that tells the quarters apart."""
    body = seeded(lambda: nn.Sequential(nn.Conv2d(6, 12, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 16), nn.ReLU()), 8)
    parts = seeded(Head, 7), body, seeded(lambda: nn.Linear(16, 4), 9)
    optimizer = torch.optim.Adam([each for part in parts for each in part.parameters()], lr=5e-3)
    images, quarters = pictures()
    head, body, tail = parts
    for rows in torch.arange(SAMPLES).repeat(30).split(48):
        optimizer.zero_grad()
        nn.functional.cross_entropy(tail(body(head(images[rows]))), quarters[rows]).backward()
        optimizer.step()
    return parts


class CausalHead(nn.Module):
    """Each position depends on the tokens up to it."""

    def __init__(self, tokens=20, width=16):
        super().__init__()
        self.table = nn.Embedding(tokens, width)
        self.mix = nn.Linear(2 * width, width)

    def forward(self, ids):
        e = self.table(ids)
        mean = e.cumsum(1) / torch.arange(1, ids.shape[1] + 1).unsqueeze(-1)
        return torch.tanh(self.mix(torch.cat([e, mean], -1)))


def tokens(vocabulary=20, positions=6):
    return torch.randint(vocabulary, (SAMPLES, positions), generator=torch.Generator().manual_seed(6))


class Tail(nn.Module):
    """Logits per position, which also depend on the positions before it."""

    def __init__(self, tokens=20, width=16):
        super().__init__()
        self.norm, self.classes = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, x):
        return self.classes(self.norm(x + 0.3 * x.cumsum(1)))


def label_case(name):
    classes = 2 if name == "gradient norm" else 4
    activation, labels, gradient = of_classes(classes, rarer=0.2)
    return Case(gradient, KNOWN, UNKNOWN, "gradient/1", activation=activation, labels=labels, classes=classes)


@functools.lru_cache(maxsize=None)  # two attacks share the training of SDAR
def image_case(make_head=Head):
    images, quarters = pictures()
    head, body, _ = trained()
    model = Model(head=head, body=body, make_head=make_head, make_tail=lambda: nn.Linear(16, 4))
    with torch.no_grad():
        return Case(head(images), KNOWN, UNKNOWN, inputs=images, labels=quarters, classes=4, model=model)


def text_case(name):
    ids, head, tail = tokens(), seeded(CausalHead, 4), seeded(Tail, 8)
    model = Model(head=head, tail=tail, table=head.table.weight.detach(), causal=name == "greedy search")
    case = Case(torch.zeros(0), KNOWN, UNKNOWN, tokens=ids, vocabulary=20, model=model)
    with torch.no_grad():
        case.traffic = head.table(ids) if name == "nearest embedding" else head(ids)
    if name == "public tail":  # the activations of a body that has made the tail's prediction
        case.flow, case.traffic = "activation/1", nn.functional.one_hot(ids, 20).float() @ torch.linalg.pinv(tail.classes.weight.detach()).T
        model.tail = tail.classes
    if name == "gradient inversion":
        case.flow, case.activation, case.targets = "gradient/1", case.traffic, ids.roll(-1, 1)
        x = case.traffic.clone().requires_grad_()
        nn.functional.cross_entropy(tail(x).flatten(0, 1), case.targets.flatten()).backward()
        case.traffic = x.grad
    return case


def case_of(attack):
    """A case on which the attack should succeed."""
    if attack.finds == "token":
        return text_case(attack.name)
    if attack.name == "linear probe":
        activation, labels, _ = of_classes(4)
        return Case(activation, KNOWN, UNKNOWN, "activation/1", labels=labels, classes=4)
    return image_case() if attack.finds == "input" or attack.name == "SDAR labels" else label_case(attack.name)


@functools.lru_cache(maxsize=None)
def constant_image_case():
    return constant(image_case())


def constant(case):
    return dataclasses.replace(case, traffic=torch.full_like(case.traffic, 0.25))


def constant_case_of(attack):
    if attack.name == "FSHA":
        return image_case(Silent)  # this attack makes the traffic itself
    case = case_of(attack)
    return constant_image_case() if case is image_case() else constant(case)


class EveryAttack(unittest.TestCase):
    EXPECTED = {"accuracy": 0.8, "AUC": 0.9, "R2": 0.5}
    WEAKER = {"UnSplit inversion": 0.3, "SDAR inputs": 0.3, "FSHA": 0.2}

    def test_it_succeeds_undefended_and_fails_against_constant_tensors(self):
        for attack in ATTACKS:
            with self.subTest(attack.name):
                case = case_of(attack)
                self.assertTrue(attack.fits(case))
                score = attack.run(case).score
                self.assertGreater(score.value, self.WEAKER.get(attack.name, self.EXPECTED[score.metric]), score)
                self.assertTrue(score.succeeds, score)
                self.assertTrue(score.low <= score.value <= score.high, score)
                score = attack.run(constant_case_of(attack)).score
                self.assertFalse(score.succeeds, score)
                self.assertLess(score.advantage, 0.15, score)

    def test_it_is_deterministic(self):
        for name in ("gradient direction", "UnSplit labels", "MLP inverter", "gradient inversion"):
            attack = next(attack for attack in ATTACKS if attack.name == name)
            with self.subTest(name):
                self.assertEqual(attack.run(case_of(attack)).score, attack.run(case_of(attack)).score)

    def test_it_is_not_run_on_a_flow_that_lacks_what_it_needs(self):
        for attack in ATTACKS:
            with self.subTest(attack.name):
                case = Case(torch.zeros(SAMPLES, 4), KNOWN, UNKNOWN, "gradient/0")
                self.assertFalse(attack.fits(case))

    def test_the_documented_table_is_this_one(self):
        page = (pathlib.Path(__file__).parents[2] / "docs/privacy.md").read_text()
        with redirect_stdout(io.StringIO()) as output:
            main(["attacks", "--markdown"])
        self.assertIn(output.getvalue(), page)


class Epochs(unittest.TestCase):
    def test_each_sample_has_its_first_last_and_mean_row(self):
        traffic, numbers = torch.tensor([[1.0], [10.0], [3.0], [20.0], [5.0]]), torch.tensor([4, 2, 4, 2, 4])
        found = {kind: rows.flatten().tolist() for kind, rows in occurrences(traffic, numbers).items()}
        self.assertEqual(found, {"first": [10.0, 1.0], "last": [20.0, 5.0], "all": [15.0, 3.0]})
        self.assertEqual(list(occurrences(traffic[:2], numbers[:2])), ["first"])

    def test_epochs_of_error_feedback_reveal_more_together_than_one(self):
        images, _ = pictures()
        left, rounds = torch.zeros_like(images), []
        for _ in range(6):  # sends the largest eighth of what has not been sent
            wanted = images + left
            largest = wanted.flatten(1).abs().topk(8, 1).values[:, -1].reshape(-1, 1, 1, 1)
            rounds.append(torch.where(wanted.abs() >= largest, wanted, torch.zeros(())))
            left = wanted - rounds[-1]
        found = occurrences(torch.cat(rounds), torch.arange(SAMPLES).repeat(6))
        attack = next(attack for attack in ATTACKS if attack.name == "ridge inversion")
        score = {kind: attack.run(Case(rows, KNOWN, UNKNOWN, inputs=images)).score for kind, rows in found.items()}
        self.assertGreater(score["all"].low, score["first"].high)
        self.assertGreater(score["all"].low, score["last"].high)


class Scores(unittest.TestCase):
    def test_intervals_have_known_values(self):
        low, high = scores.wilson(81, 263)  # Newcombe 1998, table I
        self.assertAlmostEqual(low, 0.2553, places=4)
        self.assertAlmostEqual(high, 0.3662, places=4)
        self.assertEqual(scores.wilson(50, 50)[1], 1.0)

    def test_ties_and_directions_of_an_area_under_the_curve(self):
        truth = torch.arange(60) % 2 == 0
        self.assertEqual(scores.area_under_curve(truth.float(), truth).value, 1.0)
        self.assertEqual(scores.area_under_curve(torch.zeros(60), truth).value, 0.5)
        self.assertEqual(scores.area_under_curve(-truth.float(), truth).value, 0.0)

    def test_baselines(self):
        truth = torch.tensor([0] * 40 + [1] * 10)
        score = scores.accuracy(torch.zeros(50, dtype=torch.int64), truth, 2)
        self.assertEqual(score.baselines, {"random": 0.5, "majority": 0.8})
        self.assertEqual((score.value, score.advantage, score.succeeds), (0.8, 0.0, False))
        original = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        self.assertEqual(scores.explained(original, original, original).value, 1.0)
        score = scores.explained(original.mean(0).expand(50, 3), original, original)
        self.assertAlmostEqual(score.value, 0.0)
        self.assertLess(score.baselines["random"], -0.5)  # twice the variance

    def test_tokens_without_a_target_do_not_count(self):
        truth = torch.tensor([[0, 1, -100]] * 40)
        score = scores.accuracy(torch.tensor([[0, 0, 0]] * 40), truth, 2)
        self.assertEqual((score.value, score.baselines["majority"]), (0.5, 0.5))
        self.assertEqual((score.low, score.high), (0.5, 0.5))  # all samples are alike

    def test_too_few_samples_are_refused(self):
        with self.assertRaisesRegex(Error, "29 samples are too few"):
            scores.accuracy(torch.zeros(29), torch.zeros(29), 2)


class Measures(unittest.TestCase):
    def test_distance_correlation_of_equal_and_of_independent_tensors(self):
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(2, 200, 5, generator=generator)
        rotation = torch.linalg.qr(torch.randn(5, 5, generator=generator)).Q
        self.assertAlmostEqual(measures.distance_correlation(x, 3 * x @ rotation), 1.0, places=5)
        self.assertLess(measures.distance_correlation(x, y), 0.2)
        self.assertEqual(measures.distance_correlation(torch.ones(200, 5), y), 0.0)

    def test_dfil_of_a_linear_head_is_exact_within_its_error(self):
        generator = torch.Generator().manual_seed(0)
        matrix = torch.randn(7, 5, generator=generator)
        value, error = measures.dfil(lambda x: x @ matrix.T, torch.zeros(1, 5), 0.5, generator, probes=2000)
        exact = float(matrix.square().sum()) / (0.25 * 5)
        self.assertLess(abs(float(value) - exact), 4 * float(error))

    def test_no_unbiased_attacker_beats_dfil(self):
        generator = torch.Generator().manual_seed(0)
        matrix, x = torch.randn(7, 5, generator=generator), torch.randn(2000, 5, generator=generator)
        noisy = x @ matrix.T + 0.5 * torch.randn(2000, 7, generator=generator)
        guess = noisy @ torch.linalg.pinv(matrix).T  # least squares: unbiased, and the best one
        value, _ = measures.dfil(lambda x: x @ matrix.T, x[:1], 0.5, generator, probes=2000)
        self.assertGreater(float((guess - x).square().mean()), 1 / float(value))


def write_recording(folder, batches=5, epochs=2, labels_leak=True, run="r", **about):
    """As cleave-client writes it, with the run's folder beside it: two micro-batches per step; `epochs` passes over the same samples."""
    folder = pathlib.Path(folder)
    for name in ("traffic", "inputs"):
        (folder / name).mkdir(parents=True)
    run_folder = folder.parent / f"run-{folder.name}"
    run_folder.mkdir()
    (run_folder / "run.json").write_text(json.dumps({"run": run}))
    (run_folder / "config.yaml").touch()
    (run_folder / "summary.json").write_text(json.dumps({"bytes_up": 5, "eval": {"top1": 0.5}}))
    images, head = pictures()[0][: 32 * batches], seeded(Head, 3)
    _, labels, gradient = of_classes(4)
    rows = []
    for step in range(1, batches * epochs + 1):
        numbers = torch.arange(32) + 32 * ((step - 1) % batches)
        name = f"train-{step:06}.safetensors"
        write_safetensors({"input:": images[numbers], "target": labels[numbers], "samples": numbers}, folder / "inputs" / name)
        tensors = {}
        for i, part in enumerate(numbers.split(16)):
            tensors[f"samples:{i}"] = part
            with torch.no_grad():
                tensors[f"activation/0:{i}"] = head(images[part])
            tensors[f"gradient/1:{i}"] = gradient[part] if labels_leak else torch.zeros_like(gradient[part])
        write_safetensors(tensors, folder / "traffic" / name)
        for tensor in tensors:
            flow, i = tensor.split(":")
            if flow != "samples":
                rows.append([name, tensor, "train", step, i, flow, "own", "F32", "", "block:bits=4,x=1"])
    with open(folder / "index.csv", "w", newline="") as file:
        csv.writer(file).writerows([["file", "tensor", "phase", "step", "micro_batch", "flow", "codec_level", "dtype", "shape", "codec"], *rows])
    (folder / "recording.json").write_text(json.dumps({"format": 1, "run": "r", "run_folder": str(run_folder), "inputs": True, "ended": None, **about}))
    return folder


QUICK = ["gradient direction", "linear probe", "ridge inversion"]


class Audits(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def audit(self, *recordings, attacks=QUICK, **options):
        with redirect_stderr(io.StringIO()) as self.errors:
            return audit(recordings, self.folder / "audit", attacks=attacks, **options)

    def test_a_recording_is_read_by_sample(self):
        recording = Recording(write_recording(self.folder / "rec"))
        self.assertEqual(recording.flows, ["activation/0", "gradient/1"])
        self.assertEqual(recording.codec("gradient/1"), "block:bits=4,x=1")
        traffic, numbers = recording.read("activation/0")
        inputs, _, own = recording.inputs()
        self.assertEqual(traffic.shape, (320, 6, 8, 8))
        self.assertTrue(torch.equal(numbers, own))
        self.assertTrue(torch.allclose(seeded(Head, 3)(inputs[""]).detach(), traffic, atol=1e-6))

    def test_an_audit_says_what_the_server_learns(self):
        result = self.audit(write_recording(self.folder / "leaks"), write_recording(self.folder / "silent", labels_leak=False), model=Model(head=seeded(Head, 3)))
        flows = {(flow["recording"], flow["flow"], flow["epochs"]): flow for flow in result["flows"]}
        self.assertEqual(len(flows), 12)
        self.assertIn("The server learns labels (accuracy 1.00", flows["leaks", "gradient/1", "last"]["verdict"])
        self.assertIn("which does not prove", flows["silent", "gradient/1", "first"]["verdict"])
        images = flows["leaks", "activation/0", "all"]
        self.assertIn("inputs (R2", images["verdict"])
        self.assertGreater(images["distance_correlation"], 0.5)
        self.assertGreater(images["certified_noise"], 0)
        self.assertEqual(result["recordings"][0]["eval"], {"top1": 0.5})
        across = {(each["recording"], each["flow"]): each for each in result["across_epochs"]}
        self.assertEqual(len(across), 4)
        self.assertEqual(across["silent", "gradient/1"]["all"], 0.0)
        self.assertEqual(json.loads((self.folder / "audit/audit.json").read_text()), json.loads(json.dumps(result)))
        with open(self.folder / "audit/audit.csv", newline="") as file:
            self.assertEqual(len(list(csv.DictReader(file))), len(result["rows"]))
        page = (self.folder / "audit/index.html").read_text()
        self.assertIn("data:image/png;base64,", page)
        self.assertNotIn("http", page)
        self.assertIn("18 of 18", self.errors.getvalue())

    def test_a_page_shows_tokens_and_text(self):
        ids = torch.tensor([[3, 1, -100]] * 4)
        row = {"recording": "<r>", "flow": "gradient/1", "epochs": "first", "attack": "a", "metric": "accuracy", "value": 1.0}
        result = {"flows": [], "across_epochs": [], "rows": []}
        self.assertIn("<td>3 1<br>3 1</tr>", page.render(result, [page.Figure(row, ids, ids)]))
        shown = page.render(result, [page.Figure(row, ids, ids, decode=lambda values: "&".join("abcd"[each] for each in values))])
        self.assertIn("<td>d&amp;b<br>", shown)
        self.assertIn("&lt;r&gt;", shown)

    def test_an_interrupted_audit_resumes(self):
        recording = write_recording(self.folder / "rec")
        first = self.audit(recording)
        results = self.folder / "audit/results"
        kept = {path.name: path.stat().st_ino for path in results.iterdir()}
        next(results.iterdir()).unlink()
        again = self.audit(recording)
        unchanged = sum(path.stat().st_ino == kept[path.name] for path in results.iterdir())
        self.assertGreaterEqual(unchanged, len(kept) - 1)
        self.assertEqual({path.name for path in results.iterdir()}, set(kept))
        for one, other in zip(first["rows"], again["rows"]):
            self.assertEqual({**one, "seconds": 0}, {**other, "seconds": 0})

    def test_the_command(self):
        recording = write_recording(self.folder / "rec", epochs=1)
        attacks = [word for name in QUICK for word in ("--attack", name)]
        with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(main(["audit", str(recording), "--output", str(self.folder / "out"), "--quiet", *attacks]), 0)
        self.assertIn("rec gradient/1 block:bits=4,x=1 (epochs: first): The server learns labels", output.getvalue())
        self.assertEqual(errors.getvalue(), "")
        with redirect_stdout(io.StringIO()) as output:
            self.assertEqual(main(["attacks"]), 0)
        self.assertEqual(len(output.getvalue().splitlines()), len(ATTACKS))

    def refused(self, code, arguments, *texts):
        with redirect_stderr(io.StringIO()) as errors, redirect_stdout(io.StringIO()):
            self.assertEqual(main(["audit", *map(str, arguments), "--output", str(self.folder / "refused"), "--quiet"]), 2)
        for text in (f"error [{code}]: ", "hint: ", *texts):
            self.assertIn(text, errors.getvalue())

    def test_a_bad_recording_gets_a_sentence_and_a_hint(self):
        self.refused("bad-recording", [self.folder], "is not a recording", "--record-traffic")
        self.refused("bad-recording", [write_recording(self.folder / "old", format=0)], "has the format 0, not 1")
        self.refused("no-inputs", [write_recording(self.folder / "private", inputs=False)], "has no inputs", "--record-inputs")
        self.refused("too-few-samples", [write_recording(self.folder / "few", batches=1, epochs=1)], "has 32 samples", "record more steps")
        damaged = write_recording(self.folder / "damaged")
        (damaged / "traffic/train-000002.safetensors").write_bytes(b"\1\0\0\0\0\0\0\0{")
        self.refused("bad-recording", [damaged], "train-000002.safetensors is damaged")
        missing = write_recording(self.folder / "missing")
        (missing / "inputs/train-000002.safetensors").unlink()
        self.refused("bad-recording", [missing], "train-000002.safetensors is missing")

    def test_a_file_of_any_damage_is_refused(self):
        recording = write_recording(self.folder / "rec", batches=1, epochs=1)
        path = recording / "inputs/train-000001.safetensors"
        data = path.read_bytes()
        for length in [*range(300), len(data) - 1]:
            path.write_bytes(data[:length])
            with self.assertRaises(Error):
                Recording(recording).inputs()

    def test_a_recording_needs_its_run(self):
        recording = write_recording(self.folder / "rec", run="other")
        self.refused("other-run", [recording], "is a recording of the run r", "--run DIR")
        (self.folder / "moved").mkdir()
        (self.folder / "moved/run.json").write_text('{"run": "r"}')
        (self.folder / "moved/config.yaml").touch()
        result = self.audit(recording, attacks=["linear probe"], runs=[self.folder / "moved"])
        self.assertEqual(result["flows"][0]["run"], str(self.folder / "moved"))

    def test_a_model_that_does_not_fit_gets_a_sentence_and_a_hint(self):
        whole = write_recording(self.folder / "whole")
        model = self.folder / "known.py"
        self.refused("wrong-use", [whole, "--model", self.folder / "none.py"], "there is no file")
        model.write_text("x = 1")
        self.refused("wrong-use", [whole, "--model", model], "defines none of head")
        model.write_text("from torch import nn\nhead = nn.Conv2d(1, 5, 3)")
        self.refused("other-model", [whole, "--model", model], "gives 5x6x6 per sample, but activation/0", "6x8x8")
        model.write_text("from torch import nn\nmake_head = lambda: nn.Linear(7, 7)")
        self.refused("other-model", [whole, "--model", model], "make_head() of --model fails on an input")

    def test_an_attack_that_does_not_fit_gets_a_sentence_and_a_hint(self):
        whole = write_recording(self.folder / "whole")
        self.refused("no-attack", [whole, "--attack", "white-box inversion"], "fits no flow", "head", "--model")
        self.refused("wrong-use", [whole, "--attack", "guess"], "there is no attack 'guess'")
        self.refused("wrong-use", [whole, "--known", "1.5"], "the share of known samples is 1.5")


if __name__ == "__main__":
    unittest.main()
