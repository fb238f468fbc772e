"""Tests that Cleave's tokenizer gives the same ids as Hugging Face's library `tokenizers`.

TOKENIZER_RUNNER is the path of the program tokenizer_runner; TOKENIZERS may list more tokenizer.json files to compare, separated by
colons.
"""

import os
import random
import subprocess
import tempfile
import time
import unicodedata
import unittest

try:
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError as error:
    raise unittest.SkipTest("needs the package tokenizers") from error

RUNNER = os.environ.get("TOKENIZER_RUNNER", "build/release/bin/tokenizer_runner")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4 = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
LINES = int(os.environ.get("TOKENIZER_LINES", "10000"))
SPECIAL = ["<|endoftext|>", "<s>", "</s>", "<mask>", "<pad>", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]", "<|", "|>", "[MAS", "##ing"]
WORDS = (
    "the of and to a in is it you that he was for on are with as I his they be at one have this from or had by hot word but what "
    "some we can out other were all there when up use your how said an each she which do their time if will way about many then "
    "them write would like so these her long make thing see him two has look more day could go come did number sound no most "
    "people my over know water than call first who may down side been now find don't I'm you'll we've it's they'd HE'S Straße "
    "naïve café Ångström résumé ﬁne ﬂow Ⅷ ½ ² Ünïcödé İstanbul ıspanak ſtop 'ſ DŽungla привет мир как дела что это слово Москва "
    "ёлка εὐλογημένος κόσμος Σίσυφος ΟΔΟΣ שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก 你好 世界 中文字符 日本語 テスト ｶﾀｶﾅ "
    "ひらがな 한국어 안녕하세요 가각 Việt tiếng 😀 😃👍🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️ ☃ ™ © € £ ¥ ₿ … — – “quoted” «так» ¿qué? ¡sí! 100 1234567 3.14 1e-5 0x7f "
    "a_b snake_case CamelCase x=y; if(a&&b){c++;} http://example.org/a?b=c&d=%20 user@example.com #tag $5 50% ^ ~ ` | \\n <b>"
).split(" ")


# Cleave uses PCRE2's tables of Unicode 14, whereas the library uses newer tables.
assert unicodedata.unidata_version.startswith(("14", "15", "16")), "needs Python 3.11 or later"


def is_compared(code):
    """Excludes surrogates, and code points below 0x40000 that Python's Unicode tables do not assign."""
    return not 0xD800 <= code < 0xE000 and (unicodedata.category(chr(code)) != "Cn" or code >= 0x40000)


def random_character(rng):
    kind = rng.randrange(8)
    if kind == 0:
        return chr(rng.randrange(0x20))
    if kind == 1:
        return chr(rng.randrange(0x7F, 0x250))
    if kind == 2:
        return chr(rng.randrange(0x300, 0x370))  # combining marks
    if kind == 3:
        return chr(rng.randrange(0x2000, 0x2070))  # spaces, marks of direction, joiners
    if kind == 4:
        return chr(rng.randrange(0xE000, 0x10000))
    if kind == 5:
        return chr(rng.randrange(0x1F300, 0x1F700))
    code = rng.randrange(0x110000)
    return chr(code) if is_compared(code) else "x"


def random_line(rng):
    """Bytes of a line; some are not UTF-8."""
    parts = []
    for _ in range(rng.choice([0, 1, 2, 5, 10, 30])):
        kind = rng.random()
        if kind < 0.7:
            parts.append(rng.choice(WORDS))
        elif kind < 0.75:
            parts.append("".join(random_character(rng) for _ in range(rng.randrange(1, 8))))
        elif kind < 0.8:
            parts.append(rng.choice(SPECIAL))
        elif kind < 0.84:
            parts.append(rng.choice(WORDS) + "".join(chr(rng.randrange(0x300, 0x330)) for _ in range(rng.randrange(1, 4))))
        elif kind < 0.88:
            parts.append("".join(rng.choice("abcdefgh") for _ in range(rng.choice([20, 99, 100, 101, 300]))))
        elif kind < 0.92:
            parts.append(rng.choice([" ", "\n", "\t", "\r\n", "\u00a0", "\u180e", "\u0085", "\u3000"]) * rng.randrange(1, 5))
        elif kind < 0.95:
            parts.append(rng.choice("!?.,:;'\"-_()[]{}*/+=<>@#$%^&|~`\\") * rng.randrange(1, 5))
        else:
            parts.append(rng.choice(WORDS).upper())
        if rng.random() < 0.85:
            parts.append(" ")
    line = "".join(parts).encode("utf-8")
    if rng.random() < 0.1:
        damaged = bytearray(line)
        for _ in range(rng.randrange(1, 5)):
            damaged.insert(rng.randrange(len(damaged) + 1), rng.choice([0x80, 0xC0, 0xC3, 0xE2, 0xED, 0xF0, 0xF5, 0xFF, 0xA0]))
        line = bytes(damaged)
    return line


def escaped(line):
    return line.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\t", b"\\t").replace(b"\r", b"\\r")


class Ids(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        rng = random.Random(1)
        cls.lines = [random_line(rng) for _ in range(LINES)]
        cls.lines[:4] = [b"", b" ", b"\n", "\ufeffx".encode()]
        cls.texts = [line.decode("utf-8", errors="replace") for line in cls.lines]
        rng = random.Random(2)
        cls.corpus = [" ".join(rng.choice(WORDS) for _ in range(20)) for _ in range(3000)]

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "tokenizer.json")

    def run_lines(self, path, length, lines):
        text = b"".join(line + b"\n" for line in lines)
        result = subprocess.run([RUNNER, path, str(length)], input=text, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return result.stdout.decode().splitlines()

    def compare(self, tokenizer, length=48, path=None):
        """Compares the ids without truncation, and the ids, masks and types of single lines and of pairs of lines."""
        path = path or self.path
        if path == self.path:
            tokenizer.save(path)
        made = self.run_lines(path, 0, [escaped(line) for line in self.lines])
        tokenizer.no_padding()
        tokenizer.no_truncation()
        for text, line in zip(self.texts, made, strict=True):
            self.assertEqual([int(each) for each in line.split()], tokenizer.encode(text, add_special_tokens=False).ids, repr(text))
        self.compare_samples(tokenizer, path, length)

    def compare_samples(self, tokenizer, path, length):
        padding = Tokenizer.from_file(path).padding or {}
        names = [each for each in ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>") if tokenizer.token_to_id(each) is not None]
        tokenizer.enable_padding(
            direction=padding.get("direction", "right"), length=length, pad_id=tokenizer.token_to_id(names[0]), pad_token=names[0]
        )
        tokenizer.enable_truncation(length, direction=(Tokenizer.from_file(path).truncation or {}).get("direction", "right"))
        seconds = self.lines[1:] + self.lines[:1]
        for pairs in (False, True):
            given = [escaped(a) + (b"\t" + escaped(b) if pairs else b"") for a, b in zip(self.lines, seconds)]
            made = self.run_lines(path, length, given)
            texts = list(zip(self.texts, self.texts[1:] + self.texts[:1])) if pairs else self.texts
            for text, encoding, line in zip(texts, tokenizer.encode_batch(texts), made, strict=True):
                ids, mask, types = ([int(each) for each in part.split()] for part in line.split(";"))
                self.assertEqual(ids, encoding.ids, repr(text))
                self.assertEqual(mask, encoding.attention_mask, repr(text))
                self.assertEqual(types, encoding.type_ids, repr(text))

    def byte_level(self, pre_tokenizer, special=("<|endoftext|>",), vocabulary=3000):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizer
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(
            self.corpus,
            trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, special_tokens=list(special), show_progress=False),
        )
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def test_like_gpt2(self):
        self.compare(self.byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)))

    def test_like_roberta(self):
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        tokenizer = self.byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), special)
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("[MASK]", rstrip=True)])
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        self.compare(tokenizer)

    def test_like_llama3(self):
        split = pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer = self.byte_level(pre_tokenizers.Sequence([split, bytes_only]), ["<|endoftext|>", "<|pad|>"])
        tokenizer.model.ignore_merges = True
        template = processors.TemplateProcessing(
            single="<|endoftext|> $A", pair="<|endoftext|> $A <|endoftext|>:1 $B:1", special_tokens=[("<|endoftext|>", 0)]
        )
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
        tokenizer.enable_padding(direction="left", pad_id=1, pad_token="<|pad|>")
        tokenizer.enable_truncation(48, direction="left")
        self.compare(tokenizer)

    def test_like_gpt4_with_normalization(self):
        split = pre_tokenizers.Split(Regex(GPT4), behavior="removed", invert=True)
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer = self.byte_level(pre_tokenizers.Sequence([split, bytes_only]))
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.add_tokens([AddedToken("naïve", normalized=True), AddedToken("Ｋ", normalized=False)])
        self.compare(tokenizer)

    def test_bytes_that_are_not_in_the_vocabulary(self):
        tokenizer = Tokenizer(models.BPE(unk_token="<|endoftext|>", fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False)
        tokenizer.train_from_iterator([line for line in self.corpus[:300] if line.isascii()] or ["only ascii"], trainer)
        self.compare(tokenizer)

    def word_piece(self, lowercase, strip_accents=None):
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tokenizer.train_from_iterator(
            self.corpus, trainers.WordPieceTrainer(vocab_size=3000, special_tokens=special, show_progress=False)
        )
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        return tokenizer

    def test_like_bert(self):
        self.compare(self.word_piece(lowercase=True))

    def test_like_cased_bert(self):
        self.compare(self.word_piece(lowercase=False))

    def test_lower_case_with_accents(self):
        self.compare(self.word_piece(lowercase=True, strip_accents=False))

    def test_files_listed_in_tokenizers(self):
        for path in filter(None, os.environ.get("TOKENIZERS", "").split(":")):
            with self.subTest(path):
                self.compare(Tokenizer.from_file(path), path=path)

    def test_each_character(self):
        known = {0x11938}  # its decomposition is of Unicode 13
        codes = [code for code in range(1, 0x110000) if is_compared(code) and code not in known and (code < 0x40000 or code % 97 == 0)]
        self.lines = [f"a{chr(code)}b {chr(code)}".encode() for code in codes]
        self.texts = [line.decode() for line in self.lines]
        by_words = Tokenizer(models.BPE({"a": 0, "b": 1, "?": 2}, [], unk_token="?", fuse_unk=True))  # shows how the text is cut
        by_words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        split = pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated")
        by_words_of_llama3 = Tokenizer.from_str(by_words.to_str())
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        by_words_of_llama3.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
        for tokenizer in (self.word_piece(True), by_words, by_words_of_llama3):
            tokenizer.save(self.path)
            made = self.run_lines(self.path, 0, [escaped(line) for line in self.lines])
            expected = tokenizer.encode_batch(self.texts, add_special_tokens=False)
            different = [text for text, line, encoding in zip(self.texts, made, expected) if [int(x) for x in line.split()] != encoding.ids]
            self.assertEqual(different, [])

    def test_a_long_word_takes_little_time(self):
        tokenizer = self.byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
        tokenizer.save(self.path)
        rng = random.Random(3)
        word = "".join(rng.choice("etaoinshr") for _ in range(100_000))
        start = time.monotonic()
        made = self.run_lines(self.path, 0, [word.encode()])
        self.assertLess(time.monotonic() - start, 1)
        self.assertEqual([int(each) for each in made[0].split()], tokenizer.encode(word, add_special_tokens=False).ids)


if __name__ == "__main__":
    print(tokenizers.__version__)
    unittest.main()
