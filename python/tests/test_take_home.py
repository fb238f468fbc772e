"""Tests eval, predict and export: a trained run's results agree with PyTorch.

PROGRAMS is the folder of cleave-client and cleave-server.
"""

import csv
import json
import os
import subprocess
import unittest

import torch
import torchvision

import cleave_split
from graph_case import read_safetensors
from test_training import LENGTH, PROGRAMS, Client

BATCH, MICRO_BATCHES = 16, 4


def run_client(*arguments):
    return subprocess.run([os.path.join(PROGRAMS, "cleave-client"), *arguments], capture_output=True, text=True)


class TakeHome(Client):
    def done(self, *arguments):
        ended = run_client(*arguments)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return ended.stdout

    def refused(self, code, *arguments):
        ended = run_client(*arguments)
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn(f"[{code}]", ended.stderr)

    def predictions(self, *arguments):
        """The model's outputs for the test set, with all digits."""
        output = self.path("predictions.csv")
        self.done("predict", self.run_folder, "--raw", "--output", output, "--overwrite", "--set", "threads.client=1", *arguments)
        with open(output) as file:
            rows = list(csv.reader(file))[1:]
        return torch.tensor([[float(value) for value in row[1:]] for row in rows])

    def exported(self, *arguments):
        path = self.path("exported.safetensors")
        self.done("export", self.run_folder, "--output", path, "--overwrite", *arguments)
        return read_safetensors(path)

    def images(self):
        generator = torch.Generator().manual_seed(3)
        data = {"image": torch.rand(64, 3, 64, 64, generator=generator), "labels": torch.arange(64) % 4}
        paths = cleave_split.save_dataset({"train": data, "test": {name: value[:32] for name, value in data.items()}}, self.path("images"))
        self.settings["data"].update(train={"file": paths["train"]}, test={"file": paths["test"]})
        return data["image"][:32]

    def test_logits_of_an_exported_model_equal_those_of_pytorch(self):
        images = self.images()
        for name, cuts in (("mobilenet_v2", ["features.1", "features.18"]), ("resnet18", ["maxpool", "layer4"])):
            with self.subTest(model=name):
                model = getattr(torchvision.models, name)(num_classes=4)
                cleave_split.export(model, {"x": images[:2]}, self.path(f"{name}.pt2"))
                self.settings["data"]["class_names"] = ["a", "b", "c", "d"]
                summary = self.client("train", {"file": self.path(f"{name}.pt2"), "cuts": cuts})
                evaluated = json.loads(self.done("eval", self.run_folder, "--json", "--set", "threads.client=1"))
                self.assertEqual(evaluated["metrics"]["loss"], summary["eval"]["loss"])
                self.assertEqual([each["name"] for each in evaluated["classes"]], ["a", "b", "c", "d"])
                model.load_state_dict(self.exported(), strict=True)
                model.eval().to(memory_format=torch.channels_last)
                with torch.no_grad():
                    wanted = torch.cat([model(part.contiguous(memory_format=torch.channels_last)) for part in images.split(BATCH // MICRO_BATCHES)])
                self.assertTrue(torch.equal(self.predictions(), wanted))

    def test_inserts_are_added_to_the_original_model(self):
        images = self.images()
        cuts = ["features.1", "features.18"]
        model = torchvision.models.mobilenet_v2(num_classes=4)
        cleave_split.export(model, {"x": images[:2]}, self.path("model.pt2"))
        graph = {"file": self.path("model.pt2"), "cuts": cuts}
        for first, second, *outer in (
            ({"kind": "conv", "channels": 6, "kernel": 3}, {"kind": "linear", "rank": 40}),  # 3 does not divide the 32 pixels
            ({"kind": "residual", "rank": 5}, {"kind": "conv", "channels": 64}),
            ({"kind": "pca", "channels": 24, "kernel": 3, "every_steps": 1}, {"kind": "linear", "rank": 40}),
            # Two at a cut; 2 does not divide the 11 windows of 3 pixels.
            ({"kind": "conv", "channels": 9, "kernel": 3}, {"kind": "linear", "rank": 80},
             {"cut": 1, "kind": "residual", "rank": 30}, {"cut": 0, "kind": "pca", "channels": 8, "kernel": 2, "every_steps": 1}),
            ({"kind": "decaying", "rank": 16, "every_steps": 2}, {"kind": "decaying", "rank": 1280, "every_steps": 2},
             {"cut": 1, "kind": "linear", "rank": 1280}),
        ):  # fmt: skip
            with self.subTest(first=first, second=second, outer=outer):
                self.client("train", graph, insert=[{"cut": 0, **first}, {"cut": 1, **second}, *outer])
                tensors = self.exported()
                whole = torchvision.models.mobilenet_v2(num_classes=4)
                kinds = {0: first["kind"], 1: [second["kind"], "linear"]} if first["kind"] == "decaying" else None
                self.assertIs(cleave_split.add_inserts(whole, tensors, cuts, kinds), whole)
                whole.load_state_dict(tensors, strict=True)
                whole.eval()
                wanted = self.predictions()
                with torch.no_grad():
                    self.assertLess((whole(images) - wanted).abs().max(), 1e-4)
                    # Without its inserts, the model computes something else.
                    plain = torchvision.models.mobilenet_v2(num_classes=4).eval()
                    plain.load_state_dict(tensors, strict=False)
                    self.assertGreater((plain(images) - wanted).abs().max(), 1e-2)
                with self.assertRaisesRegex(cleave_split.InsertError, "already has"):
                    cleave_split.add_inserts(whole, tensors, cuts)
                for wrong in (["features.1"], ["features.1", "features.99"]):
                    with self.assertRaisesRegex(cleave_split.InsertError, "cut 1"):
                        cleave_split.add_inserts(torchvision.models.mobilenet_v2(num_classes=4), tensors, wrong)
        with self.assertRaisesRegex(cleave_split.InsertError, r"kinds=\{0: KIND\}"):  # of the last case
            cleave_split.add_inserts(torchvision.models.mobilenet_v2(num_classes=4), tensors, cuts)
        with self.assertRaisesRegex(cleave_split.InsertError, "no inserts"):
            cleave_split.add_inserts(model, model.state_dict(), cuts)

    def test_inserts_do_not_encode_masks(self):
        model, exported = self.roberta()
        cuts = ["roberta.embeddings", "roberta.encoder.layer.0"]  # the mask crosses both
        graph = {**exported, "cuts": cuts}
        insert = [{"cut": 0, "kind": "residual", "rank": 12}, {"cut": 1, "kind": "linear", "rank": 8}]
        self.assertTrue(self.client("verify", graph, insert=insert)["equal"])
        self.client("train", graph, insert=insert)
        with open(os.path.join(self.run_folder, "transfers.csv"), newline="") as file:
            sizes = {row["flow"]: int(row["raw_bytes"]) for row in csv.DictReader(file)}
        samples = BATCH // MICRO_BATCHES
        self.assertEqual(sizes["activation/0"], samples * LENGTH * 12 * 4)
        self.assertEqual(sizes["activation/0.1"], samples * LENGTH * 8)
        self.assertEqual(sizes["gradient/1"], samples * LENGTH * 8 * 4)
        tensors = self.exported()
        cleave_split.add_inserts(model, tensors, cuts)
        model.load_state_dict(tensors, strict=True)
        model.eval()
        with torch.no_grad():
            logits = model(self.data["input_ids"][:32], attention_mask=self.data["attention_mask"][:32]).logits
        self.assertLess((self.predictions() - logits).abs().max(), 1e-5)

    def test_averaged_weights_are_evaluated_and_saved(self):
        self.images()
        model = torchvision.models.mobilenet_v2(num_classes=4)
        cleave_split.export(model, {"x": torch.rand(2, 3, 64, 64)}, self.path("model.pt2"))
        graph = {"file": self.path("model.pt2"), "cuts": ["features.1", "features.18"]}
        self.assertTrue(self.client("verify", graph, train__ema=0.9)["equal"])
        summary = self.client("train", graph, train__ema=0.9)
        self.assertEqual(json.loads(self.done("eval", self.run_folder, "--json", "--set", "threads.client=1"))["metrics"]["loss"], summary["eval"]["loss"])

    def test_adapters_are_merged_into_the_original_weights(self):
        lora = {"rank": 4, "targets": ["query", "value"]}
        model, exported = self.roberta()
        self.client("train", {**exported, "lora": lora}, train__learning_rate=0.05)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self.exported(), strict=True)
        changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
        self.assertTrue(any("query.weight" in name for name in changed))
        self.assertFalse(any("dense.weight" in name for name in changed if "encoder" in name))
        model.eval()
        with torch.no_grad():
            logits = model(self.data["input_ids"][:32], attention_mask=self.data["attention_mask"][:32]).logits
        self.assertLess((self.predictions() - logits).abs().max(), 1e-5)

    def test_adapters_of_gpt2_are_merged_transposed(self):
        model, exported = self.gpt2()
        lora = {"rank": 4, "targets": ["c_attn"]}
        summary = self.client("train", {**exported, "lora": lora}, data__target="input_ids", train__loss="next_token", train__learning_rate=0.05)
        model.load_state_dict(self.exported(), strict=False)
        model.eval()
        ids = self.data["input_ids"][:32]
        with torch.no_grad():
            loss = model(ids, labels=ids).loss
        self.assertAlmostEqual(loss.item(), summary["eval"]["loss"], places=4)
        self.refused("no-predict", "predict", self.run_folder)

    def test_a_server_gives_the_same_predictions(self):
        _, exported = self.roberta()
        self.client("train", exported, keep={"best": "top1"}, train__stop={"metric": "loss", "patience": 1, "min_change": 1000}, train__epochs=5)
        with open(os.path.join(self.run_folder, "summary.json")) as file:
            self.assertEqual(json.load(file)["stopped_after_epoch"], 2)
        with subprocess.Popen([os.path.join(PROGRAMS, "cleave-server"), "serve", "--set", "listen.port=0", "--set", f"store={self.path('store')}"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            try:
                address = server.stdout.readline().split()[-1]
                through = self.predictions("--server", address)
            finally:
                server.terminate()
        self.assertTrue(torch.equal(through, self.predictions()))
        self.refused("file-exists", "predict", self.run_folder, "--output", self.path("predictions.csv"))
        self.refused("data-missing", "predict", self.run_folder, "--input", self.path("none"))
        self.done("predict", self.run_folder, "--best")

    def test_usage_errors(self):
        _, exported = self.roberta()
        self.client("train", exported)
        self.refused("no-model", "eval", self.run_folder, "--best")
        self.refused("no-model", "eval", self.path("nothing"))
        self.refused("no-description", "eval", self.settings["data"]["test"]["file"])
        self.refused("file-exists", "export", self.run_folder, "--output", self.folder)
        damaged = self.path("damaged.safetensors")
        with open(os.path.join(self.run_folder, "model.safetensors"), "rb") as file:
            content = file.read()
        with open(damaged, "wb") as file:
            file.write(content[: len(content) // 2])
        self.refused("bad-safetensors", "eval", damaged)
        self.refused("bad-safetensors", "export", damaged, "--output", self.path("x"))
        self.assertFalse(os.path.exists(self.path("x")))


if __name__ == "__main__":
    unittest.main()
