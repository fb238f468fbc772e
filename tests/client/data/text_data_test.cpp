// The data formats `text` and `csv`.
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>

#include "client/data/files/csv_file.h"
#include "client/data/formats/formats.h"
#include "client/run/temporary_folder.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

using Integers = std::vector<std::int64_t>;
using Floats = std::vector<float>;
using Names = std::vector<std::string>;

constexpr const char* kTokenizer = R"({
  "added_tokens": [{"id": 0, "content": "[PAD]", "special": true, "normalized": false}],
  "normalizer": {"type": "BertNormalizer", "lowercase": true},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "good": 4, "bad": 5,
                      "film": 6, ",": 7}}})";

class Folder {
 public:
  std::string write(const std::string& name, const std::string& content) const {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

 private:
  TemporaryFolder folder_;
};

std::unique_ptr<Dataset> open(const std::string& format, const DataFormatKeys& keys,
                              DataSplit split = DataSplit::train) {
  return findDataFormat(format).open(keys, split);
}

// Reads one array of a sample.
template <typename T>
std::vector<T> sample(const Dataset& data, std::uint32_t index, std::size_t array) {
  std::vector<std::vector<std::byte>> memory;
  for (const SampleArray& each : data.arrays()) memory.emplace_back(specOf(each, 1).bytes());
  std::vector<std::span<std::byte>> spans(memory.begin(), memory.end());
  data.write(index, std::nullopt, spans);
  std::vector<T> values(memory[array].size() / sizeof(T));
  std::memcpy(values.data(), memory[array].data(), memory[array].size());
  return values;
}

// ---- CSV files ----

std::vector<Names> rowsOf(const CsvFile& file) {
  std::vector<Names> rows;
  file.forEachRow([&](std::uint64_t line, std::span<const std::string_view> cells) {
    rows.push_back({std::to_string(line)});
    rows.back().insert(rows.back().end(), cells.begin(), cells.end());
  });
  return rows;
}

TEST_CASE("quoted CSV cells may contain commas, quotes and line breaks") {
  const Folder folder;
  const CsvFile file(folder.write(
      "a.csv", "\xEF\xBB\xBFx,\"y z\"\r\n1,\"two\nlines\"\r\n\r\n\"say \"\"hi\"\"\",\n,\"\""));
  CHECK(file.header() == Names{"x", "y z"});
  CHECK(rowsOf(file) ==
        std::vector<Names>{{"2", "1", "two\nlines"}, {"5", "say \"hi\"", ""}, {"6", "", ""}});
  CHECK(file.column("y z", "") == 1);
  CHECK(errorCode([&] { file.column("z", ""); }) == "no-column");
}

TEST_CASE("TSV cells are separated by tabs, and the last line may lack a line break") {
  const Folder folder;
  const CsvFile file(folder.write("a.tsv", "x\ty\n1,5\t2\r"));
  CHECK(rowsOf(file) == std::vector<Names>{{"2", "1,5", "2"}});
  const CsvFile quoted(folder.write("b.tsv", "x\ty\n1\t\"2\"\r"));
  CHECK(rowsOf(quoted) == std::vector<Names>{{"2", "1", "2"}});
}

TEST_CASE("damaged CSV files are refused, and the error names file and line") {
  const Folder folder;
  const auto fault = [&](const std::string& content) {
    const std::string path = folder.write("a.csv", content);
    CHECK(errorCode([&] { rowsOf(CsvFile(path)); }) == "data-damaged");
    return errorText([&] { rowsOf(CsvFile(path)); });
  };
  CHECK_THAT(fault("a,b\n1,2\n3,\"4\n5,6\n"), Catch::Contains("a.csv:3"));
  CHECK_THAT(fault("a,b\n1,2\n3\n"), Catch::Contains("a.csv:3"));
  CHECK_THAT(fault("a,b\n1,\"2\" x\n"), Catch::Contains("a.csv:2"));
  CHECK_THAT(fault("a,a\n1,2\n"), Catch::Contains("two columns"));
  CHECK(errorCode([&] { CsvFile(folder.write("a.csv", "")); }) == "data-empty");
  CHECK(errorCode([&] { CsvFile(folder.write("a.csv", "\n\n")); }) == "data-empty");
  CHECK(errorCode([&] { CsvFile(folder.path("none.csv")); }) == "data-missing");
}

// ---- text ----

struct TextFiles {
  TextFiles() {
    keys.tokenizer = folder.write("tokenizer.json", kTokenizer);
    keys.length = 6;
    keys.trainFile =
        folder.write("train.csv",
                     "label,text,other\npos,\"Good film, good\",1\nneg,bad,2\npos,good film film "
                     "film film,3\n");
    keys.testFile = folder.write("test.csv", "text,label\nbad,neg\nfilm,pos\n");
  }
  DataSplit learnedFor(DataSplit split) {
    keys.learned = open("text", keys)->learned();
    return split;
  }
  Folder folder;
  DataFormatKeys keys;
};

TEST_CASE("a text with a label becomes ids, a mask, types and a class") {
  TextFiles files;
  const auto data = open("text", files.keys);
  CHECK(data->size() == 3);
  CHECK(data->classes() == 2);
  CHECK(data->classNames() == Names{"neg", "pos"});
  Names arrays;
  for (const SampleArray& array : data->arrays()) arrays.push_back(toString(array));
  CHECK(arrays == Names{"input_ids i64[6]", "attention_mask i64[6]", "token_type_ids i64[6]",
                        "labels i64[]"});
  CHECK(sample<std::int64_t>(*data, 0, 0) == Integers{2, 4, 6, 7, 4, 3});
  CHECK(sample<std::int64_t>(*data, 1, 0) == Integers{2, 5, 3, 0, 0, 0});
  CHECK(sample<std::int64_t>(*data, 1, 1) == Integers{1, 1, 1, 0, 0, 0});
  CHECK(sample<std::int64_t>(*data, 1, 2) == Integers(6, 0));
  CHECK(sample<std::int64_t>(*data, 2, 0) == Integers{2, 4, 6, 6, 6, 3});
  CHECK(sample<std::int64_t>(*data, 0, 3) == Integers{1});
  CHECK(sample<std::int64_t>(*data, 1, 3) == Integers{0});
  CHECK(data->arrays()[0].maxValue == 7);  // checked against the model's embedding
  CHECK(data->arrays()[1].maxValue == -1);
  CHECK(data->sampleName(2) == files.keys.trainFile + ":4");

  files.keys.learned = data->learned();
  const auto test = open("text", files.keys, DataSplit::test);
  CHECK(test->arrays() == data->arrays());
  CHECK(sample<std::int64_t>(*test, 1, 3) == Integers{1});
}

TEST_CASE("the tokens of a second text have their own type") {
  TextFiles files;
  files.keys.trainFile =
      files.folder.write("pairs.tsv", "text\tb\tlabel\ngood\tbad film\t0\ngood\tfilm\t1\n");
  files.keys.pairColumn = "b";
  const auto data = open("text", files.keys);
  CHECK(sample<std::int64_t>(*data, 0, 0) == Integers{2, 4, 3, 5, 6, 3});
  CHECK(sample<std::int64_t>(*data, 0, 2) == Integers{0, 0, 0, 1, 1, 1});
}

TEST_CASE("labels are class numbers, class names, or numeric targets") {
  TextFiles files;
  const auto labels = [&](const std::string& values, std::vector<std::int64_t> expected,
                          const Names& names, int classes) {
    std::string content = "text,label\n";
    for (const char c : values)
      content += c == ' ' ? "\n" : (content.back() == '\n' ? "x," : "") + std::string(1, c);
    files.keys.trainFile = files.folder.write("labels.csv", content + "\n");
    const auto data = open("text", files.keys);
    CHECK(data->classNames() == names);
    CHECK(data->classes() == classes);
    for (std::uint32_t n = 0; n < data->size(); ++n)
      CHECK(sample<std::int64_t>(*data, n, 3) == Integers{expected[n]});
  };
  labels("2 0 4", {2, 0, 4}, {}, 5);
  labels("10 9 1", {2, 1, 0}, {"1", "9", "10"}, 3);
  labels("-1 1", {0, 1}, {"-1", "1"}, 2);
  labels("b a 1", {2, 1, 0}, {"1", "a", "b"}, 3);

  files.keys.trainFile = files.folder.write("numbers.csv", "text,label\nx,0.5\ny,-2\n");
  CHECK(errorCode([&] { open("text", files.keys); }) == "bad-label");
  files.keys.targetType = "number";
  const auto data = open("text", files.keys);
  CHECK(data->classes() == 0);
  CHECK(toString(data->arrays()[3]) == "labels f32[]");
  CHECK(sample<float>(*data, 1, 3) == Floats{-2});
  files.keys.trainFile = files.folder.write("numbers.csv", "text,label\nx,nan\n");
  CHECK_THAT(errorText([&] { open("text", files.keys); }), Catch::Contains("numbers.csv:2"));
  // The other columns of the file decide that 1.234 is 1234.
  files.keys.trainFile =
      files.folder.write("numbers.csv", "text;label;weight\nx;1.234;0,5\ny;3;1,5\n");
  CHECK(sample<float>(*open("text", files.keys), 0, 3) == Floats{1234});
}

TEST_CASE("inputs for predictions are tables without labels, or one text per line") {
  TextFiles files;
  files.learnedFor(DataSplit::input);
  files.keys.inputs = {files.folder.write("in.csv", "n,text\n1,good\n2,bad\n"),
                       files.folder.write("in.txt", "film\r\n\nbad, good")};
  const auto data = open("text", files.keys, DataSplit::input);
  CHECK(data->size() == 5);
  CHECK(sample<std::int64_t>(*data, 2, 0) == Integers{2, 6, 3, 0, 0, 0});
  CHECK(sample<std::int64_t>(*data, 3, 0) == Integers{2, 3, 0, 0, 0, 0});
  CHECK(sample<std::int64_t>(*data, 4, 0) == Integers{2, 5, 7, 4, 3, 0});
  CHECK(sample<std::int64_t>(*data, 4, 3) == Integers{0});
  CHECK(data->sampleName(1) == files.keys.inputs[0] + ":3");
  CHECK(data->sampleName(4) == files.keys.inputs[1] + ":3");
  files.keys.inputs = {files.folder.path("")};
  CHECK(errorCode([&] { open("text", files.keys, DataSplit::input); }) == "no-predict");
}

TEST_CASE("plain text is divided into blocks of tokens") {
  TextFiles files;
  files.keys.length = 4;
  files.keys.trainFile = files.folder.write("all.txt", "good film\nbad film, good film\ngood\n");
  const auto data = open("text", files.keys);
  CHECK(data->size() == 2);  // two blocks of the 8 tokens
  CHECK(data->classes() == 0);
  CHECK(data->arrays().back().name == "input_ids");
  CHECK(data->arrays()[0].maxValue == 7);
  CHECK(sample<std::int64_t>(*data, 0, 0) == Integers{4, 6, 5, 6});
  CHECK(sample<std::int64_t>(*data, 0, 1) == Integers{1, 1, 1, 1});
  CHECK(sample<std::int64_t>(*data, 1, 2) == Integers{7, 4, 6, 4});
  CHECK_THAT(data->sampleName(1), Catch::Contains("tokens 4 … 7"));
  files.keys.learned = data->learned();
  CHECK(errorCode([&] { open("text", files.keys, DataSplit::test); }) == "data-damaged");
  const auto refused = [&] { open("text", files.keys); };
  files.keys.trainFile = files.folder.write("latin1.txt",
                                            "good\nb\xE4"
                                            "d\n");
  CHECK_THAT(errorText(refused), Catch::Contains("latin1.txt:2: byte 2 of the line, 0xE4"));
  CHECK_THAT(errorHint(refused), Catch::EndsWith("latin1.txt > NEW.txt"));
  files.keys.trainFile = files.folder.write("short.txt", "good\n");
  CHECK(errorCode([&] { open("text", files.keys); }) == "data-empty");
}

TEST_CASE("texts that do not fit are refused") {
  TextFiles files;
  const auto code = [&](const std::string& content, DataSplit split = DataSplit::train) {
    (split == DataSplit::train ? files.keys.trainFile : files.keys.testFile) =
        files.folder.write("damaged.csv", content);
    return errorCode([&] { open("text", files.keys, split); });
  };
  CHECK(code("text,label\n") == "data-empty");
  CHECK(code("text,class\nx,1\n") == "no-column");
  CHECK(code("texts,label\nx,1\n") == "no-column");
  CHECK(code("text,label\nx,\n") == "bad-label");
  TextFiles test;
  files.keys = test.keys;
  files.learnedFor(DataSplit::test);
  CHECK(code("text,label\nx,pos\ny,other\n", DataSplit::test) == "bad-label");
  CHECK_THAT(errorText([&] { open("text", files.keys, DataSplit::test); }),
             Catch::Contains("damaged.csv:3") && Catch::Contains("other"));
  CHECK(code("text\nx\n", DataSplit::test) == "no-column");
  files.keys.testFile = files.folder.write("test.txt", "good\n");
  CHECK(errorCode([&] { open("text", files.keys, DataSplit::test); }) == "data-damaged");
  files.keys.testFile = "";
  CHECK(errorCode([&] { open("text", files.keys, DataSplit::test); }) == "config-missing");
  files.keys.length = 2;
  CHECK(errorCode([&] { open("text", files.keys); }) == "config-value");
  files.keys.length = 8;
  files.keys.padToken = "<none>";
  CHECK(errorCode([&] { open("text", files.keys); }) == "config-value");
}

// ---- csv ----

struct Tables {
  Tables() {
    keys.trainFile =
        folder.write("train.csv", "age,city,label,income\n20,Rome,yes,1\n40,Oslo,no,3\n");
  }
  Folder folder;
  DataFormatKeys keys;
};

TEST_CASE("numbers are standardised and categories one-hot, both by the training set's values") {
  Tables tables;
  const auto data = open("csv", tables.keys);
  CHECK(data->size() == 2);
  CHECK(data->classNames() == Names{"no", "yes"});
  CHECK(toString(data->arrays()[0]) == "f32[4]");
  CHECK(sample<float>(*data, 0, 0) == Floats{-1, 0, 1, -1});  // the columns age, Oslo, Rome, income
  CHECK(sample<float>(*data, 1, 0) == Floats{1, 1, 0, 1});
  CHECK(sample<std::int64_t>(*data, 0, 1) == Integers{1});
  CHECK(data->sampleName(1) == tables.keys.trainFile + ":3");

  tables.keys.learned = data->learned();
  tables.keys.testFile =
      tables.folder.write("test.tsv", "age\tincome\tlabel\tcity\n60\t2\tno\tBern\n");
  const auto test = open("csv", tables.keys, DataSplit::test);
  CHECK(sample<float>(*test, 0, 0) == Floats{3, 0, 0, 0});
  CHECK(sample<std::int64_t>(*test, 0, 1) == Integers{0});

  tables.keys.inputs = {tables.folder.write("in.csv", "city,age,income\nRome,20,5\n")};
  const auto input = open("csv", tables.keys, DataSplit::input);
  CHECK(input->arrays() == data->arrays());
  CHECK(sample<float>(*input, 0, 0) == Floats{-1, 0, 1, 3});
}

TEST_CASE("columns can be listed, and a target can be a number") {
  Tables tables;
  tables.keys.numericColumns = {"age"};
  tables.keys.categoricalColumns = {"income"};
  tables.keys.targetType = "number";
  tables.keys.labelColumn = "age";
  CHECK(errorCode([&] { open("csv", tables.keys); }) ==
        "config-value");  // the model's input would include the target
  tables.keys.numericColumns = {};
  const auto data = open("csv", tables.keys);
  CHECK(sample<float>(*data, 1, 0) == Floats{0, 1});
  CHECK(toString(data->arrays()[1]) == "f32[]");
  CHECK(sample<float>(*data, 1, 1) == Floats{40});
  CHECK(data->classes() == 0);
}

TEST_CASE("a missing cell is an error, or replaced by the mean if configured") {
  Tables tables;
  tables.keys.trainFile = tables.folder.write("train.csv", "a,b,label\n1,x,0\n,y,1\n3,NaN,0\n");
  CHECK(errorCode([&] { open("csv", tables.keys); }) == "missing-value");
  CHECK_THAT(errorText([&] { open("csv", tables.keys); }),
             Catch::Contains("train.csv:3") && Catch::Contains("'a'"));
  tables.keys.missing = "mean";
  const auto data = open("csv", tables.keys);
  CHECK(sample<float>(*data, 1, 0) == Floats{0, 0, 1});
  CHECK(sample<float>(*data, 2, 0) == Floats{1, 0, 0});
}

TEST_CASE("a constant column becomes 0, and a column with inf is categorical") {
  Tables tables;
  tables.keys.trainFile = tables.folder.write("train.csv", "a,b,label\n7,1,0\n7,inf,1\n");
  const auto data = open("csv", tables.keys);
  CHECK(sample<float>(*data, 0, 0) == Floats{0, 1, 0});
}

TEST_CASE("a few texts among the numbers of a column are refused, unless the columns are listed") {
  Tables tables;
  tables.keys.trainFile =
      tables.folder.write("train.csv", "a,b,label\n1,2,0\n2,3,1\n1O,4,0\n4,inf,1\n");
  CHECK(errorCode([&] { open("csv", tables.keys); }) == "data-damaged");
  CHECK_THAT(errorText([&] { open("csv", tables.keys); }),
             Catch::Contains("train.csv:4: '1O' in the column 'a'") && Catch::Contains("3 other"));
  tables.keys.categoricalColumns = {"a", "b"};
  CHECK(toString(open("csv", tables.keys)->arrays()[0]) == "f32[8]");
}

TEST_CASE("tables that do not fit are refused") {
  Tables tables;
  tables.keys.learned = open("csv", tables.keys)->learned();
  const auto code = [&](const std::string& content, DataSplit split) {
    (split == DataSplit::train ? tables.keys.trainFile : tables.keys.testFile) =
        tables.folder.write("damaged.csv", content);
    return errorCode([&] { open("csv", tables.keys, split); });
  };
  const DataSplit test = DataSplit::test, train = DataSplit::train;
  CHECK(code("age,city,label,income\nx,Rome,yes,1\n", test) == "data-damaged");
  CHECK(code("age,city,label\n1,Rome,yes\n", test) == "no-column");
  CHECK(code("age,city,income\n1,Rome,2\n", test) == "no-column");
  CHECK(code("age,city,label,income\n1,Rome,maybe,2\n", test) == "bad-label");
  CHECK(code("age,city,label,income\n", test) == "data-empty");
  CHECK(code("age,city,label,income\n", train) == "data-empty");
  CHECK(code("age,label\n1,yes\n2,yes\n", train) == "too-few-classes");
  CHECK(code("age,income\n1,2\n", train) == "no-column");
  CHECK(code("label\n1\n", train) == "no-column");
  CHECK(code("a,label\n,1\n", train) == "data-damaged");
  tables.keys.numericColumns = {"a"};
  CHECK(code("a,label\nx,1\n", train) == "data-damaged");
  tables.keys.numericColumns = {"b"};
  CHECK(code("a,label\n2,1\n", train) == "no-column");
  tables.keys.numericColumns = {"a"};
  tables.keys.categoricalColumns = {"a"};
  CHECK(code("a,label\n2,1\n", train) == "config-value");
  tables.keys.trainFile = tables.folder.write("train.txt", "a,label\n2,1\n");
  CHECK(errorCode([&] { open("csv", tables.keys); }) == "data-damaged");
  tables.keys.categoricalColumns = {};
  tables.keys.numericColumns = {};
  std::string many = "a,label\n";
  for (int n = 0; n < 5000; ++n) many += "v" + std::to_string(n) + ",1\n";
  CHECK(code(many, train) == "too-many-features");
}

}  // namespace
}  // namespace cleave::test
