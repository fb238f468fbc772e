"""Evaluations compute what PyTorch computes after model.eval(), whatever the seed.

GRAPH_RUNNER is the path of the program graph_runner, PROGRAMS the folder of cleave-client.
"""

import csv
import os
import subprocess
import sys
import unittest
import zipfile

import peft
import timm
import torch
import transformers
from torch import nn

import cleave_split
from cleave_split.safetensors_file import write_safetensors
from graph_case import GraphCase, read_safetensors
from models import MODELS, classifier, images, some, text, vision

PROGRAMS = os.environ.get("PROGRAMS", "build/release/bin")
# Of the largest logit. PyTorch may choose other kernels, such as those of channels_last.
TOLERANCE = 1e-5


class RandomDepth(nn.Module):
    """Stochastic depth written with torch.rand, as in several model libraries."""

    def __init__(self, p=0.5):
        super().__init__()
        self.layer, self.p = nn.Linear(8, 8), p

    def forward(self, x):
        y = self.layer(x)
        if self.training:
            y = y * torch.floor(torch.rand(x.shape[0], 1) + 1 - self.p) / (1 - self.p)
        return x + torch.relu(y)


class Switched(nn.Module):
    """Computes something else in evaluation, with a constant that only evaluation has."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        if self.training:
            return self.a(x) * torch.tensor([2.0]) + torch.tensor([3.0])
        return self.a(self.b(x)) * torch.tensor([0.5, 1, 2, 4, 8, 16, 32, 64])


class Auxiliary(nn.Module):
    """Returns two values in training, and one in evaluation."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.extra = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return (self.last(x), self.extra(x)) if self.training else self.last(x)


class Tied(nn.Module):
    """Reads a parameter under one of its names in training, and under the other in evaluation."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return nn.functional.linear(torch.relu(x), (self.last if self.training else self.first).weight)


class Crossing(nn.Module):
    """Between its two modules, another tensor crosses in evaluation."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.ReLU(), nn.ReLU())
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        first, second, third, fourth = self.layers
        y = third(second(first(x)))
        return self.last(fourth(y) + (0 if self.training else x))


class Sentences(nn.Module):
    """An encoder of torch.nn, which has a fast path in evaluation."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False)
        self.encoder.requires_grad_(False)
        self.classifier = nn.Linear(16, 3)

    def forward(self, input_ids):
        return self.classifier(self.encoder(self.embedding(input_ids)).mean(1))


class AlwaysNormalizing(nn.Module):
    """Its batch norm uses the statistics of the batch in evaluation too."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def train(self, mode=True):
        super().train(mode)
        self.norm.train()
        return self

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def vectors(samples=6):
    return torch.randn(samples, 8, generator=torch.Generator().manual_seed(4))


def chain(*layers):
    return nn.Sequential(nn.Linear(8, 8), *layers, nn.Linear(8, 4))


def random_depth():
    return chain(RandomDepth(), RandomDepth(), RandomDepth())


def swin():
    config = transformers.SwinConfig(image_size=32, patch_size=4, embed_dim=8, depths=[1, 2], num_heads=[1, 2], window_size=4, num_labels=5)
    return transformers.SwinForImageClassification(config)


def segformer():
    config = transformers.SegformerConfig(num_encoder_blocks=2, depths=[1, 2], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[3, 3], strides=[2, 2],
                                          num_attention_heads=[1, 2], mlp_ratios=[2, 2], num_labels=5)
    return transformers.SegformerForImageClassification(config)


def beit():
    config = transformers.BeitConfig(image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, num_labels=5)
    return transformers.BeitForImageClassification(config)


def convnext_v2():
    config = transformers.ConvNextV2Config(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, drop_path_rate=0.3, num_labels=5)
    return transformers.ConvNextV2ForImageClassification(config)


def sequence(name, **options):
    config = getattr(transformers, name + "Config")(**{**classifier(0.2), **options})
    return getattr(transformers, name + "ForSequenceClassification")(config)


def distilbert():
    config = transformers.DistilBertConfig(vocab_size=100, dim=32, hidden_dim=64, n_layers=2, n_heads=2, max_position_embeddings=40, num_labels=3)
    return transformers.DistilBertForSequenceClassification(config)


def tuned():
    config = peft.LoraConfig(r=2, lora_dropout=0.3, target_modules=["query"], init_lora_weights=False)
    return peft.get_peft_model(sequence("Bert"), config).get_base_model()


def small(name, **options):
    return timm.create_model(name, num_classes=5, **options)


TIMM_VIT = dict(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, drop_path_rate=0.3, drop_rate=0.2)
# name, function that makes the model, example inputs, output, cuts (empty: whole)
OTHERS = [
    ("random depth", random_depth, vectors(), None, ["0", "2"]),
    ("self.training", lambda: chain(Switched(), nn.ReLU()), vectors(), None, ["0", "1"]),
    ("tied, with another name", lambda: chain(Tied(), nn.Sequential(Tied(), nn.ReLU())), vectors(), None, ["0", "1"]),
    ("auxiliary output", Auxiliary, vectors(), 0, []),
    ("batch norm and dropout", lambda: chain(nn.BatchNorm1d(8), nn.Dropout(0.5), nn.AlphaDropout(0.3)), vectors(), None, ["0", "1"]),
    ("batch norm that always trains", AlwaysNormalizing, vectors(), None, ["first", "norm"]),
    ("encoder of torch.nn", Sentences, text(masked=False)["input_ids"], None, ["embedding", "encoder.layers.0"]),
    ("hf swin", swin, images(32), "logits", ["swin.embeddings", "swin.encoder.layers.0"]),
    ("hf segformer", segformer, images(32), "logits", []),
    ("hf beit", beit, images(32), "logits", ["beit.embeddings", "beit.layers.1"]),
    ("hf convnext v2", convnext_v2, images(32), "logits", []),
    ("hf distilbert", distilbert, text(), "logits", ["distilbert.embeddings", "distilbert.transformer.layer.0"]),
    ("hf electra", lambda: sequence("Electra", embedding_size=16), text(), "logits", []),
    ("hf mpnet", lambda: sequence("MPNet"), text(), "logits", []),
    ("hf albert", lambda: sequence("Albert", embedding_size=16), text(), "logits", []),
    ("peft", tuned, text(), "logits", []),
    ("torchvision regnet", lambda: vision("regnet_y_400mf"), images(32), None, ["stem", "trunk_output.block3"]),
    ("torchvision squeezenet", lambda: vision("squeezenet1_1"), images(64), None, ["features.3", "features.9"]),
    ("torchvision shufflenet", lambda: vision("shufflenet_v2_x0_5"), images(32), None, []),
    ("timm vit", lambda: small("vit_tiny_patch16_224", **TIMM_VIT), images(32), None, ["patch_embed", "blocks.0"]),
    ("timm deit", lambda: small("deit3_small_patch16_224", **TIMM_VIT), images(32), None, []),
    ("timm swin", lambda: small("swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=8, depths=(1, 2), num_heads=(1, 2), drop_path_rate=0.3),
     images(32), None, ["patch_embed", "layers.0"]),
    ("timm convnext", lambda: small("convnext_atto", depths=(1, 1, 2, 1), dims=(8, 8, 16, 16), drop_path_rate=0.5), images(32), None, ["stem", "stages.1"]),
    ("timm resnet", lambda: small("resnet18", drop_path_rate=0.3, drop_rate=0.2), images(32), None, ["maxpool", "layer3"]),
    ("timm efficientnet", lambda: small("mnasnet_small", drop_path_rate=0.3), images(32), None, []),
    ("timm mobilenet v3", lambda: small("mobilenetv3_small_050", drop_path_rate=0.3), images(32), None, []),
    ("timm patch dropout", lambda: small("vit_tiny_patch16_224", **TIMM_VIT, pos_drop_rate=0.2, proj_drop_rate=0.2, attn_drop_rate=0.2), images(32), None, []),
]


def value_of(returned, output):
    if isinstance(returned, torch.Tensor):
        return returned
    return returned[output]


def inputs_of(program, example):
    """The inputs by name."""
    return example if isinstance(example, dict) else {program.graph_signature.user_inputs[0]: example}


class Evaluated(GraphCase):
    def export(self, make, example, output):
        """Exports a model whose running statistics are not the initial ones. Returns it and its inputs by name."""
        torch.manual_seed(0)
        model = make().train()
        with torch.no_grad():
            for _ in range(2):
                model(**example) if isinstance(example, dict) else model(example)
        program = cleave_split.export(model, example, self.path("model.pt2"), output=output)
        return model, inputs_of(program, example)

    def evaluate(self, inputs, *arguments, seed=1):
        return self.run_graph(inputs, *arguments, f"eval={seed}")["logits"]

    def eager(self, model, example, output):
        with torch.no_grad():
            model.eval()
            return value_of(model(**example) if isinstance(example, dict) else model(example), output)

    def assert_close(self, logits, expected):
        self.assertLessEqual((logits - expected).abs().max().item(), TOLERANCE * expected.abs().max().item())

    def test_models_equal_their_evaluation_mode(self):
        dropping = [(name, lambda make=make: make(0.2), example, output, cuts) for name, make, example, output, cuts in MODELS]
        equal, cases = 0, some(dropping + OTHERS)
        for name, make, example, output, cuts in cases:
            with self.subTest(name):
                model, inputs = self.export(make, example, output)
                expected = self.eager(model, example, output)
                logits = self.evaluate(inputs)
                self.assert_close(logits, expected)
                equal += torch.equal(logits, expected)
                split = self.evaluate(inputs, *cuts, seed=2)
                self.assert_close(split, expected)
        # The others are those for which PyTorch chooses other kernels.
        if len(cases) == len(dropping) + len(OTHERS):
            self.assertGreaterEqual(equal, 0.8 * len(cases))

    def test_adapters_have_no_dropout_in_evaluation(self):
        make, example = lambda: sequence("Bert"), text()
        self.export(make, example, "logits")
        torch.manual_seed(0)
        adapted = peft.get_peft_model(make(), peft.LoraConfig(r=4, lora_alpha=12, lora_dropout=0.5, target_modules=["query"], init_lora_weights=False))
        given = {name.removeprefix("base_model.model.").replace(".default", ""): parameter.data
                 for name, parameter in adapted.named_parameters() if "lora_" in name}
        logits = self.evaluate({**example, **given}, "bert.embeddings", "bert.encoder.layer.1", "lora=4:12:query")
        self.assert_close(logits, self.eager(adapted, example, "logits"))
        self.assertGreater(len(given), 4)

    def test_a_file_has_the_weights_once_and_loads_in_pytorch(self):
        torch.manual_seed(0)
        model = chain(Switched(), nn.Linear(8, 20000))
        model[3] = nn.Linear(20000, 4)
        program = cleave_split.export(model, vectors(), self.path("model.pt2"))
        self.assertLess(os.path.getsize(self.path("model.pt2")), 1.2 * sum(4 * parameter.numel() for parameter in model.parameters()))
        loaded = torch.export.load(self.path("model.pt2"))
        for each in (program, loaded):
            self.assertTrue(torch.equal(each.module()(vectors()), model(vectors())))

    def client(self, *arguments):
        """Runs cleave-client; returns what it prints on stderr."""
        ended = subprocess.run([os.path.abspath(os.path.join(PROGRAMS, "cleave-client")), *arguments], capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return ended.stderr

    def predict(self, inputs, model="", learning_rate=0):
        """Trains the model, and predicts through the programs; returns the logits and what they print."""
        write_safetensors({**inputs, "label": torch.arange(6) % 4}, self.path("data.safetensors"))
        data = "{file: " + self.path("data.safetensors") + "}"
        with open(self.path("run.yaml"), "w") as file:
            file.write(f"""model: {{name: graph, file: {self.path("model.pt2")}, cuts: ["0", "2"]{model}}}
data: {{format: tensors, train: {data}, test: {data}, target: label}}
train: {{epochs: 1, batch: 6, micro_batches: 1, learning_rate: {learning_rate}}}
codec: none
""")
        printed = self.client("train", "--config", self.path("run.yaml"), "--run-dir", self.path("run"))
        printed += self.client("predict", self.path("run"), "--raw", "--output", self.path("p.csv"))
        with open(self.path("p.csv")) as file:
            rows = list(csv.reader(file))[1:]
        return torch.tensor([[float(value) for value in row[1:]] for row in rows]), printed

    def test_merged_adapters_predict_what_the_adapted_model_does(self):
        model, inputs = self.export(random_depth, vectors(), None)
        untrained = self.eager(model, vectors(), None)
        logits, _ = self.predict(inputs, ", lora: {rank: 2, dropout: 0.2, targets: [layer]}", learning_rate=0.5)
        self.client("export", self.path("run"), "--output", self.path("merged.safetensors"))
        model.load_state_dict(read_safetensors(self.path("merged.safetensors")))
        self.assert_close(logits, self.eager(model, vectors(), None))
        self.assertGreater((logits - untrained).abs().max(), 0.01)

    def test_the_programs_evaluate_without_random_depth(self):
        model, inputs = self.export(random_depth, vectors(), None)
        logits, printed = self.predict(inputs)
        self.assert_close(logits, self.eager(model, vectors(), None))
        self.assertNotIn("evaluation graph", printed)

    def test_a_file_without_an_evaluation_graph_gives_a_warning(self):
        torch.manual_seed(0)
        shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
        program = torch.export.export(random_depth(), (vectors(),), dynamic_shapes=shapes)
        torch.export.save(program, self.path("model.pt2"))
        _, printed = self.predict(inputs_of(program, vectors()))
        self.assertRegex(printed, "warning.*model.pt2 has no evaluation graph, .* aten.rand.default")

    def assert_refused(self, words, model, **options):
        with self.assertRaises(cleave_split.ExportError) as refused:
            cleave_split.export(model, vectors(), self.path("none.pt2"), **options)
        for word in words:
            self.assertIn(word, str(refused.exception))
        self.assertFalse(os.path.exists(self.path("none.pt2")))

    def test_modes_that_do_not_fit_each_other_are_refused(self):
        class Merging(nn.Linear):
            def train(self, mode=True):
                if mode != self.training:
                    with torch.no_grad():
                        self.weight.mul_(2 if mode else 0.5)
                return super().train(mode)

        class Wider(nn.Module):
            def forward(self, x):
                return x if self.training else torch.cat([x, x], 1)

        class Branching(nn.Module):
            def forward(self, x):
                return x if self.training or x.sum() > 0 else -x

        class Two(nn.Module):
            def forward(self, x):
                return x if self.training else (x, x)

        merging = chain(Merging(8, 8))
        before = merging[1].weight.clone()
        self.assert_refused(["model.eval() changes 1.weight", "train()"], merging)
        self.assertTrue(torch.equal(merging[1].weight, before))
        self.assert_refused(["in evaluation mode", "returns float32 [6, 8], but in training mode float32 [6, 4]"], nn.Sequential(chain(), Wider()))
        self.assert_refused(["in evaluation mode", "branches on the values"], chain(Branching()))
        self.assert_refused(["in evaluation mode", "forward returns 2 values", "evaluation=False"], nn.Sequential(chain(), Two()))
        self.assert_refused(["other tensors cross", "after layers.0 float32 [6, 8], float32 [6, 8] instead of float32 [6, 8]"], Crossing())

    def test_a_model_can_be_exported_for_training_only(self):
        class Branching(nn.Module):
            def forward(self, x):
                return torch.dropout(x, 0.5, self.training) if self.training or x.sum() > 0 else -x

        self.assert_refused(["branches on the values", "or export the model for training only: evaluation=False"], chain(Branching(), nn.ReLU()))
        torch.manual_seed(0)
        model = chain(Branching(), RandomDepth(), nn.ReLU())
        program = cleave_split.export(model, vectors(), self.path("model.pt2"), evaluation=False)
        self.assertTrue(model.training)
        with zipfile.ZipFile(self.path("model.pt2")) as archive:
            self.assertFalse([name for name in archive.namelist() if "evaluation" in name])
        _, printed = self.predict(inputs_of(program, vectors()))
        self.assertRegex(printed, "warning.*model.pt2 has no evaluation graph, .* aten.rand.default")


if __name__ == "__main__":
    sys.exit(unittest.main())
