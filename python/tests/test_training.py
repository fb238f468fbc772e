"""Tests users' models and text: export, training, fine-tuning with LoRA, and loading the result in PyTorch.

PROGRAMS is the folder of cleave-client and cleave-server.
"""

import concurrent.futures
import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest

import peft
import torch
import transformers

import cleave_split
from graph_case import GraphCase, read_safetensors
from models import MODELS, NO_DROPOUT, SMALL, some

PROGRAMS = os.environ.get("PROGRAMS", "build/release/bin")
LENGTH = 16
CLASSIFIER = dict(NO_DROPOUT, num_labels=2)


def roberta(**options):
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**SMALL, **dict(CLASSIFIER, **options)))


def gpt2():
    config = transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=3, n_head=2, n_positions=40, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def sentences(count):
    """Token ids with padding, and a class that depends on the first token."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 100, (count, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    for sample in range(count):
        length = LENGTH // 2 + sample % (LENGTH // 2)
        mask[sample, length:], ids[sample, length:] = 0, 1
    return {"input_ids": ids, "attention_mask": mask, "labels": (ids[:, 0] > 50).long()}


class Masking(torch.nn.Module):
    """Makes its mask in the middle of the model, from the ids if it is not given."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x, mask):
            return torch.relu(self.linear(x)) * (mask != 0).unsqueeze(-1)

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 8)
        self.layer = Masking.Layer()
        self.classifier = torch.nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask=None):
        x = self.layer(self.embedding(input_ids), input_ids if attention_mask is None else attention_mask)
        return self.classifier(x.mean(1))


class Client(GraphCase):
    def setUp(self):
        super().setUp()
        data = sentences(96)
        paths = cleave_split.save_dataset({"train": data, "test": {name: value[:32] for name, value in data.items()}}, self.path("data"))
        self.data = data
        self.settings = {
            "data": {"format": "tensors", "train": {"file": paths["train"]}, "test": {"file": paths["test"]}},
            "train": {"batch": 16, "micro_batches": 4, "learning_rate": 0.001, "optimizer": "adamw"},
            "eval": {"batch": 16},
            "codec": "none",
        }

    def client(self, command, model, **overrides):
        """Runs a command of cleave-client; returns its JSON."""
        ended = self.run_client(command, model, **overrides)
        self.assertEqual(ended.returncode, 0, ended.stderr + ended.stdout)
        return json.loads(ended.stdout)

    def run_client(self, command, model, **overrides):
        settings = json.loads(json.dumps(self.settings))
        settings["model"] = {"name": "graph", **model}
        for key, value in overrides.items():
            path = key.split("__")
            target = settings
            for part in path[:-1]:
                target = target.setdefault(part, {})
            target[path[-1]] = value
        with open(self.path("run.yaml"), "w") as file:
            json.dump(settings, file)  # JSON is YAML
        self.run_folder = os.path.join(tempfile.mkdtemp(dir=self.folder), "run")
        return subprocess.run([os.path.join(PROGRAMS, "cleave-client"), command, "--config", self.path("run.yaml"), "--run-dir", self.run_folder, "--json"],
                              capture_output=True, text=True)

    def rows(self, name):
        with open(os.path.join(self.run_folder, name), newline="") as file:
            return list(csv.DictReader(file))

    def weights(self):
        return read_safetensors(os.path.join(self.run_folder, "model.safetensors"))

    def roberta(self, **options):
        model = roberta(**options)
        example = {name: self.data[name][:4] for name in ("input_ids", "attention_mask")}
        cleave_split.export(model, example, self.path("roberta.pt2"), output="logits")
        return model, {"file": self.path("roberta.pt2"), "cuts": ["roberta.embeddings", "roberta.encoder.layer.1"]}

    def gpt2(self):
        model = gpt2()
        cleave_split.export(model, {"input_ids": self.data["input_ids"][:4]}, self.path("gpt2.pt2"), output="logits")
        return model, {"file": self.path("gpt2.pt2"), "cuts": ["transformer.drop", "transformer.h.1"]}


class Training(Client):
    def test_text_is_bit_identical_to_the_whole_model(self):
        _, model = self.roberta(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
        lora = {"rank": 4, "dropout": 0.1, "targets": ["query", "value"]}
        head, all_but_last = ["roberta.embeddings.*"], ["*", "!classifier*"]
        for overrides in (
            {},
            {"train__freeze": head},
            {"train__freeze": all_but_last},
            {"model__lora": lora},
            {"model__lora": lora, "train__freeze": all_but_last, "train__recompute": True, "train__schedule": "1f1b",
             "train__groups": ["*lora_B*:learning_rate=16,weight_decay=0"]},
            {"precision": {"server": "bf16", "client": "bf16"}, "train__recompute": True},
            {"precision": {"server": "fp16", "client": "fp16"}},
            {"train__loss": {"label_smoothing": 0.1, "class_weights": [1, 3]}},
            {"train__staleness": 2, "train__freeze": head},
            {"train__staleness": 1, "model__lora": lora, "train__recompute": True, "precision": {"server": "bf16", "client": "bf16"}},
        ):
            with self.subTest(overrides=overrides):
                self.assertTrue(self.client("verify", model, **overrides)["equal"])

    def test_a_tied_embedding_and_next_tokens(self):
        model, exported = self.gpt2()
        text = {"data__target": "input_ids", "train__loss": "next_token"}
        for overrides in ({}, {"model__lora": {"rank": 4, "targets": ["c_attn", "c_proj"]}}, {"precision": {"server": "bf16"}}, {"train__staleness": 2}):
            with self.subTest(overrides=overrides):
                self.assertTrue(self.client("verify", exported, **text, **overrides)["equal"])
        summary = self.client("train", exported, **text)
        self.assertEqual(summary["main_metric"], "perplexity")
        weights = read_safetensors(os.path.join(self.run_folder, "model.safetensors"))
        self.assertTrue(torch.equal(weights["transformer.wte.weight"], weights["lm_head.weight"]))
        self.assertEqual(model.load_state_dict(weights, strict=False).missing_keys, [])
        # A file with both names of a tied parameter can be the initial weights of another run.
        self.client("train", exported, **text, weights=os.path.join(self.run_folder, "model.safetensors"))

    def test_a_frozen_head_sends_no_gradients(self):
        _, model = self.roberta()
        whole = self.client("train", model)
        frozen = self.client("train", model, train__freeze=["roberta.embeddings.*"])
        self.assertIn("gradient/0", whole["codec"])
        self.assertNotIn("gradient/0", frozen["codec"])
        self.assertLess(frozen["bytes_down"], 0.7 * whole["bytes_down"])

    def test_the_mask_crosses_once_per_micro_batch_and_the_ids_never(self):
        _, model = self.roberta()
        summary = self.client("train", model)
        sent = [row for row in self.rows("transfers.csv") if row["role"] == "send" and row["flow"].startswith("activation/0")]
        # 96 samples in steps of 16 samples and 4 micro-batches, then an evaluation of 32 samples.
        self.assertEqual(summary["steps"], 6)
        for phase, count in (("train", 6 * 4), ("eval", 32 * 4 // 16)):
            for flow, value_bytes in (("activation/0", LENGTH * 32 * 4), ("activation/0.1", LENGTH * 8)):
                rows = [row for row in sent if row["phase"] == phase and row["flow"] == flow]
                self.assertEqual(len(rows), count, (phase, flow))
                self.assertEqual({int(row["raw_bytes"]) for row in rows}, {4 * value_bytes})
        # Nothing else crosses the first cut, and only the mask has integers.
        self.assertEqual({row["flow"] for row in sent}, {"activation/0", "activation/0.1"})

    def test_a_mask_made_from_ids_in_the_body_is_refused(self):
        exported = {"file": self.path("masking.pt2"), "cuts": ["embedding", "layer"]}
        ids = {"input_ids": self.data["input_ids"][:4]}
        cleave_split.export(Masking(), ids, self.path("masking.pt2"))
        ended = self.run_client("train", exported)
        self.assertEqual(ended.returncode, 2, ended.stderr)
        for words in ("[bad-cuts]", "in module 'layer'", "reads input_ids", "as an input of the model"):
            self.assertIn(words, ended.stderr)
        # If the mask is an input, it crosses instead of the ids.
        cleave_split.export(Masking(), {**ids, "attention_mask": self.data["attention_mask"][:4]}, self.path("masking.pt2"))
        self.client("train", exported)
        self.assertEqual({row["flow"] for row in self.rows("transfers.csv") if row["role"] == "send" and row["flow"].startswith("activation")},
                         {"activation/0", "activation/0.1"})
        shown = json.loads(subprocess.run([os.path.join(PROGRAMS, "cleave-client"), "models", "show", self.path("masking.pt2"), "--json"], capture_output=True,
                                          text=True, check=True).stdout)
        cut = next(cut for cut in shown["cuts"] if "embedding" in cut["names"])
        self.assertEqual(cut["shapes"], f"[samples, {LENGTH}, 8]")

    def test_parameters_exported_without_gradients_are_frozen(self):
        model = roberta()
        frozen = ["roberta.embeddings.", "roberta.encoder.layer.1.attention."]
        for name, parameter in model.named_parameters():
            parameter.requires_grad = not name.startswith(tuple(frozen))
        example = {name: self.data[name][:4] for name in ("input_ids", "attention_mask")}
        cleave_split.export(model, example, self.path("frozen.pt2"), output="logits")
        exported = {"file": self.path("frozen.pt2"), "cuts": ["roberta.embeddings", "roberta.encoder.layer.1"]}
        self.assertTrue(self.client("verify", exported)["equal"])
        summary = self.client("train", exported)
        self.assertNotIn("gradient/0", summary["codec"])
        self.assertIn("gradient/1", summary["codec"])
        weights = self.weights()
        for name, parameter in model.named_parameters():
            self.assertEqual(torch.equal(weights[name], parameter), not parameter.requires_grad, name)

    def test_adapters_are_in_the_chosen_parts(self):
        _, model = self.roberta()
        model["cuts"] = ["roberta.encoder.layer.0", "roberta.encoder.layer.1"]
        every = ["head", "body", "tail"]
        for parts in (every, ["head"], ["body"], ["tail"], ["head", "tail"]):
            lora = {"rank": 2, "targets": ["query"], "parts": parts}
            with self.subTest(parts=parts):
                self.client("train", model, model__lora=lora, train__freeze=["*"], train__max_steps=2)
                layers = {name.split(".")[3] for name in self.weights() if "lora_" in name}
                self.assertEqual(layers, {str(every.index(part)) for part in parts})
        self.assertTrue(self.client("verify", model, model__lora=lora)["equal"])

    def test_the_evaluation_and_the_best_model(self):
        model, exported = self.roberta()
        summary = self.client("train", exported, train__epochs=4, train__metrics=["matthews", "f1", "auroc", "top1"], keep__best="matthews")
        self.assertEqual(summary["main_metric"], "matthews")
        self.assertGreater(summary["eval"]["best_matthews"], 0.5)
        # The best model, in PyTorch, has the recorded value.
        model.load_state_dict(read_safetensors(os.path.join(self.run_folder, "model.best.safetensors")), strict=False)
        model.eval()
        test = {name: value[:32] for name, value in self.data.items()}
        with torch.no_grad():
            predicted = model(test["input_ids"], test["attention_mask"]).logits.argmax(1)
        self.assertAlmostEqual(matthews(predicted, test["labels"]), summary["eval"]["best_matthews"], places=6)

    def test_adapters_load_in_peft(self):
        for make, cuts, targets, overrides in (
            (self.roberta, None, ["query", "value"], {"train__freeze": ["*", "!classifier.*"]}),
            (self.roberta, ["roberta.encoder.layer.0", "roberta.encoder.layer.1"], ["query", "value"], {"train__freeze": ["*", "!classifier.*"]}),
            (self.gpt2, None, ["c_attn"], {"data__target": "input_ids", "train__loss": "next_token"}),
        ):
            model, exported = make()
            if cuts:
                exported["cuts"] = cuts
            with self.subTest(type(model).__name__, cuts=cuts):
                self.client("train", exported, model__lora={"rank": 4, "alpha": 8, "targets": targets}, **overrides)
                adapter = os.path.join(self.run_folder, "adapter")
                tuned = peft.PeftModel.from_pretrained(model, adapter).eval()
                whole = read_safetensors(os.path.join(self.run_folder, "model.safetensors"))
                state = tuned.state_dict()
                compared = 0
                for name, value in whole.items():
                    for form in (name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default."),
                                 name.replace("classifier.dense.", "classifier.dense.modules_to_save.default.")
                                     .replace("classifier.out_proj.", "classifier.out_proj.modules_to_save.default.")):
                        if ("lora_" in name) == ("default" in form) or "classifier" in name:
                            found = state.get("base_model.model." + form)
                            if found is not None and ("default" in form):
                                compared += 1
                                self.assertTrue(torch.equal(found, value), name)
                self.assertGreaterEqual(compared, 6)


class Models(Client):
    """Every model of the tests with PyTorch, with its random operators on."""

    def test_every_model_is_bit_identical_to_the_whole_model(self):
        for name, make, example, output, cuts in some(MODELS):
            with self.subTest(name):
                torch.manual_seed(0)
                model = make(0.2)
                cleave_split.export(model, example, self.path("model.pt2"), output=output)
                inputs = example if isinstance(example, dict) else {"x": example}
                paths = cleave_split.save_dataset({"data": {**inputs, "labels": torch.arange(4) % 3}}, self.path("rows"))
                overrides = {"data__train": {"file": paths["data"]}, "data__test": {"file": paths["data"]}, "train__batch": 4, "train__micro_batches": 2,
                             "train__epochs": 2, "eval__batch": 4}
                if name in ("gpt2", "llama"):
                    overrides.update(data__target="input_ids", train__loss="next_token")
                result = self.client("verify", {"file": self.path("model.pt2"), "cuts": cuts}, **overrides)
                self.assertTrue(result["equal"])


class Experiments(GraphCase):
    """Runs the configurations of the text experiments for a few steps, with a small random RoBERTa and files in GLUE's format."""

    SENTENCES = ["The cat sat on the mat.", "A storm closed the harbour.", "Prices fell in March.", "Nobody saw him leave."]

    def write_glue(self):
        for name, rows in (("train.tsv", 40), ("dev.tsv", 8)):
            texts = [self.SENTENCES[row % 4] for row in range(rows)]
            os.makedirs(self.path("RTE"), exist_ok=True)
            os.makedirs(self.path("CoLA"), exist_ok=True)
            with open(os.path.join(self.path("RTE"), name), "w") as file:
                file.write("index\tsentence1\tsentence2\tlabel\n")
                for row, text in enumerate(texts):
                    file.write(f"{row}\t{text}\tSomething \"happened.\t{['entailment', 'not_entailment'][row % 2]}\n")
            with open(os.path.join(self.path("CoLA"), name), "w") as file:
                for row, text in enumerate(texts):
                    file.write(f"gj04\t{row % 2}\t{'*' if row % 2 else ''}\t{text}\n")

    def write_roberta(self):
        """A Hugging Face model folder: weights, configuration, tokenizer."""
        from tokenizers import ByteLevelBPETokenizer

        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(self.SENTENCES, vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
        os.makedirs(self.path("model"), exist_ok=True)
        tokenizer.save_model(self.path("model"))
        config = transformers.RobertaConfig(**dict(SMALL, hidden_size=64, vocab_size=tokenizer.get_vocab_size(), num_hidden_layers=12, max_position_embeddings=140))
        transformers.RobertaForSequenceClassification(config).save_pretrained(self.path("model"))
        transformers.RobertaTokenizerFast.from_pretrained(self.path("model")).save_pretrained(self.path("model"))

    def test_every_row_trains(self):
        self.write_glue()
        self.write_roberta()
        root = os.path.join(os.path.dirname(__file__), "..", "..")
        folder = os.path.join(root, "configs", "experiments")
        sys.path.insert(0, folder)
        self.addCleanup(sys.path.remove, folder)
        import glue

        for task, name in (("rte", "RTE"), ("cola", "CoLA")):
            glue.main(["--task", task, "--glue", self.path(name), "--model", self.path("model"), "--output", self.path("experiments/" + task), "--length", "24"])
        import results

        runs = {}  # by configuration and settings, so that each is trained once
        for name in ("rte", "cola", "cola_fairseq", "cola_lora"):
            for row in results.ROWS[name]:
                for codec in dict.fromkeys((row.codecs[0], row.codecs[-1])):
                    settings = {**row.settings, "codec": codec, "train.max_steps": "2", "train.micro_batches": "2", "eval.every": "0", "keep": "{}"}
                    if "rank: 768" in settings.get("insert", ""):  # the small model has 64 features, and no pre-trained inserts
                        settings["insert"] = settings["insert"].replace("min_rank: 48", "min_rank: 4").replace("rank: 768", "rank: 64")
                        del settings["weights.file"]
                    runs.setdefault((name, *(f"--set={key}={value}" for key, value in settings.items())), len(runs))

        def train(run):
            (name, *sets), number = run
            command = [os.path.abspath(os.path.join(PROGRAMS, "cleave-client")), "train", "--config", os.path.abspath(os.path.join(folder, name + ".yaml")),
                       "--run-dir", self.path(f"run{number}"), "--json", "--set=threads.client=1", "--set=threads.server=1", *sets]
            return subprocess.run(command, capture_output=True, text=True, cwd=self.folder)

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            chosen = some(runs.items())
            for run, ended in zip(chosen, pool.map(train, chosen)):
                with self.subTest(run=run):
                    self.assertEqual(ended.returncode, 0, ended.stderr)
                    self.assertEqual(json.loads(ended.stdout)["steps"], 2)

    def test_a_row_of_another_task_is_refused(self):
        self.write_glue()
        folder = os.path.join(os.path.dirname(__file__), "..", "..", "configs", "experiments")
        sys.path.insert(0, folder)
        self.addCleanup(sys.path.remove, folder)
        import glue

        with self.assertRaises(SystemExit) as refused:
            glue.read_rows(os.path.join(self.path("CoLA"), "dev.tsv"), glue.TASKS["rte"])
        self.assertIn("dev.tsv, row 1: not a row of this task", str(refused.exception))


def matthews(predicted, actual):
    table = [[int(((predicted == p) & (actual == a)).sum()) for a in (0, 1)] for p in (0, 1)]
    (tn, fn), (fp, tp) = table
    return (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5


class Lora(GraphCase):
    """Adapters give results that are bit-identical to those of Hugging Face PEFT."""

    def compare(self, make, example, labels, target, cuts=()):
        torch.manual_seed(0)
        model = make()
        cleave_split.export(model, example, self.path("model.pt2"), output="logits")
        torch.manual_seed(0)
        adapted = peft.get_peft_model(make(), peft.LoraConfig(r=4, lora_alpha=12, lora_dropout=0.0, target_modules=[target]))
        given = {}
        generator = torch.Generator().manual_seed(5)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
                given[name.removeprefix("base_model.model.").replace(".default", "")] = parameter.data
        adapted.train()
        logits = adapted(**example).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels)
        loss.backward()
        results = self.run_graph({**example, "labels": labels, **given}, *cuts, f"lora=4:12:{target}")
        self.assertTrue(torch.equal(results["logits"], logits.detach()))
        self.assertTrue(torch.equal(results["loss"], loss.detach()))
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                own = "grad." + name.removeprefix("base_model.model.").replace(".default", "")
                self.assertTrue(torch.equal(results[own], parameter.grad), own)
        self.assertGreaterEqual(len(given), 6)

    def test_linear_layers(self):
        data = sentences(4)
        self.compare(roberta, {name: data[name] for name in ("input_ids", "attention_mask")}, data["labels"], "query")

    def test_linear_layers_in_all_parts_of_a_cut_model(self):
        data = sentences(4)
        self.compare(roberta, {name: data[name] for name in ("input_ids", "attention_mask")}, data["labels"], "query",
                     ["roberta.encoder.layer.0", "roberta.encoder.layer.1"])

    def test_the_layers_of_gpt2(self):
        def make():
            model = gpt2()
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            for block in model.transformer.h:
                block.attn.attn_dropout.p = 0.0
            model.config.attn_pdrop = 0.0
            return model

        data = sentences(4)
        self.compare(make, {"input_ids": data["input_ids"]}, torch.arange(4 * LENGTH) % 100, "c_attn")


class FakeDataset:
    """The parts of a Hugging Face Dataset that save_dataset uses."""

    def __init__(self, columns):
        self.columns = columns
        self.column_names = list(columns)

    def __getitem__(self, name):
        return self.columns[name]


class SavedDatasets(GraphCase):
    def test_columns_of_numbers_are_written(self):
        rows = FakeDataset({"text": ["a", "b"], "input_ids": [[1, 2], [3, 4]], "score": [0.5, 1.5], "flag": [True, False]})
        paths = cleave_split.save_dataset({"train": rows}, self.path("data"))
        written = read_safetensors(paths["train"])
        self.assertEqual(sorted(written), ["flag", "input_ids", "score"])
        self.assertEqual(written["input_ids"].tolist(), [[1, 2], [3, 4]])
        self.assertEqual(written["input_ids"].dtype, torch.int64)
        self.assertEqual(written["score"].dtype, torch.float32)

    def test_a_column_may_be_a_list_of_tensors(self):
        paths = cleave_split.save_dataset({"x": [torch.ones(2), torch.zeros(2)]}, self.path("data"))
        self.assertEqual(read_safetensors(paths["data"])["x"].tolist(), [[1, 1], [0, 0]])

    def test_a_large_split_becomes_a_folder(self):
        values = torch.arange(10)
        paths = cleave_split.save_dataset({"x": values}, self.path("data"), max_shard_bytes=32)
        files = sorted(os.listdir(paths["data"]))
        self.assertEqual(len(files), 3)
        parts = [read_safetensors(os.path.join(paths["data"], name))["x"] for name in files]
        self.assertTrue(torch.equal(torch.cat(parts), values))
        # A smaller version replaces all of it.
        paths = cleave_split.save_dataset({"x": values[:8]}, self.path("data"), max_shard_bytes=32)
        self.assertEqual(len(os.listdir(paths["data"])), 2)
        paths = cleave_split.save_dataset({"x": values[:2].to(torch.uint16)}, self.path("data"))
        self.assertEqual(os.listdir(self.path("data")), ["data.safetensors"])
        self.assertEqual(read_safetensors(paths["data"])["x"].tolist(), [0, 1])

    def test_mistakes(self):
        def refused(expected, dataset, **options):
            with self.assertRaises(cleave_split.DatasetError) as error:
                cleave_split.save_dataset(dataset, self.path("data"), **options)
            self.assertIn(expected, str(error.exception))

        refused("padding='max_length'", {"train": FakeDataset({"ids": [[1], [1, 2]]})})
        refused("there is no column b", {"a": [1]}, columns=["b"])
        refused("does not consist of numbers", {"a": ["x"]}, columns=["a"])
        refused("none of the columns", {"a": ["x"]})
        refused("different numbers of samples", {"a": [1, 2], "b": [1]})
        refused("no samples", {"a": torch.zeros(0)})
        refused("row 1 of the column a contains None", {"a": [1.0, None]})
        refused("row 0 of the column a contains None", {"a": [None, 1.0]})
        refused("row 1 of the column a contains 'x'", {"a": [[1.0], ["x"]]})
        refused("row 1 of the column a has lists of different lengths", {"a": [[[1], [2]], [[1], [2, 3]]]})
        refused("the column a is a single value of type float", {"a": 1.0})
        refused("the column a is a single value of type Tensor", {"a": torch.tensor(1.0)})
        refused("the dataset is of type list, not a dict of columns", [{"a": 1.0}, {"a": 2.0}])
        refused("no columns", {})


if __name__ == "__main__":
    sys.exit(unittest.main())
