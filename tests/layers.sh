#!/usr/bin/env bash
# Checks that each folder includes only headers of folders and libraries that the list below allows (docs/DESIGN.md, "Layers"). Prints each
# include that is not allowed, each folder without a row, and each entry that no file uses; then fails.
set -euo pipefail
cd "$(dirname "$0")/.."

# FOLDER | Cleave's folders that it may include | restricted libraries that it may include. The restricted libraries are torch, boost
# (Asio), CLI, cuda, google (protobuf), hwy, openssl, prometheus, yaml-cpp, zstd.
rows='
common/core        |                                                                  | openssl yaml-cpp
common/checkpoint  | common/core                                                      |
common/topology    |                                                                  |
common/codec       | common/core common/topology |
common/net         | common/core proto                                                | boost google openssl
common/http        | common/core common/net                                           | boost
common/engine      | common/core common/codec common/topology |
common/link        | common/core common/codec common/net common/engine proto common/topology | boost
common/predict     | common/core common/net common/engine common/link common/topology |
common/record      | common/core common/net common/engine common/link common/predict proto | boost
common/device      | common/core                                                      | torch
common/graph       | common/core proto                                                | zstd
common/model       | common/core common/codec common/device common/graph common/topology | torch
common/program     | common/core                                                      | CLI
common/replicas    | common/core common/net                                           | boost torch
common/run         | common/checkpoint common/core common/codec common/topology common/net common/http common/engine common/graph common/link common/predict common/record common/device common/model compression proto | torch prometheus
compression        | common/core common/codec compression/kernels                     | zstd
compression/kernels |                                                                 | hwy
compression/device | common/core common/codec compression                             |
cuda               | common/core common/device compression/device                     | torch
client/data        | common/codec common/core |
client/start       | client/data common/core common/topology |
client/report      | common/core common/http common/topology |
client/codecs      | common/codec common/predict common/topology compression |
client/config      | client/codecs client/data common/checkpoint common/core common/graph common/model common/program common/run compression | CLI
client/run         | client/config client/data common/checkpoint common/codec common/core common/device common/engine common/link common/model common/net common/predict common/record common/run proto | boost
client/train       | client/codecs client/config client/data client/run common/checkpoint common/codec common/core common/engine common/graph common/link common/model common/predict common/record common/run common/topology | boost
client/planning    | client/codecs client/config client/run client/train common/codec common/core common/link common/predict common/run compression |
client/evaluate    | client/config client/data client/run client/train common/codec common/core common/graph common/run | torch
client/sweep       | client/config client/report client/run common/checkpoint common/core common/program common/run common/topology |
client/diagnose    | client/planning client/run common/codec common/core common/link common/net common/program common/run compression proto | boost openssl
client/commands    | client/codecs client/config client/data client/diagnose client/evaluate client/planning client/report client/run client/start client/sweep client/train common/codec common/core common/engine common/graph common/http common/link common/model common/predict common/record common/run compression | CLI torch
client             | client/commands common/core common/engine | CLI
stage              | common/core common/codec common/engine common/model common/run proto                     | torch google
server/access      | common/core common/net common/program common/run | boost openssl
server/config      | common/core common/model common/net common/replicas common/run common/topology server/access | boost
server/store       | common/checkpoint common/codec common/core common/device common/engine common/link common/record common/run proto server/access server/config | boost
server/status      | common/core common/engine common/link common/net common/program server/config | boost
server/run         | common/checkpoint common/core common/device common/engine common/link common/model common/net common/replicas common/run proto server/access server/config server/status server/store stage | boost
server/sessions    | common/core common/device common/link common/net common/replicas common/run proto server/access server/config server/run server/status server/store | boost
server/commands    | common/checkpoint common/core common/program common/run server/access server/config server/status server/store | CLI
server             | common/core common/http common/net common/program common/run server/commands server/config server/sessions stage | CLI
tools/link         | common/core common/net common/program                            | boost CLI
tools/relay        | common/core common/net common/program                            | boost CLI
'

find client common compression cuda server stage tools \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) -print0 | xargs -0 grep -HoE '^#include [<"][^>"]+[>"]' | awk -v rows="$rows" '
  function folderOf(path) { sub("/[^/]*$", "", path); return path }
  # Prints the restricted library that a header belongs to; "" if there is none.
  function libraryOf(header) {
    if (header ~ "^(torch|ATen|c10|caffe2)/") return "torch"
    if (header ~ "^boost/") return "boost"
    if (header ~ "^CLI/") return "CLI"
    if (header ~ "^cuda[^/]") return "cuda"
    if (header ~ "^google/") return "google"
    if (header ~ "^hwy/") return "hwy"
    if (header ~ "^openssl/") return "openssl"
    if (header ~ "^prometheus/") return "prometheus"
    if (header ~ "^yaml-cpp/") return "yaml-cpp"
    if (header ~ "^zstd") return "zstd"
    return ""
  }
  BEGIN {
    count = split(rows, lines, "\n")
    for (l = 1; l <= count; ++l) {
      if (split(lines[l], cells, "|") != 3) continue
      folder = cells[1]; gsub(" ", "", folder)
      known[folder] = 1
      n = split(cells[2] " " cells[3], allowed, " ")
      for (a = 1; a <= n; ++a) may[folder, allowed[a]] = 1
    }
  }
  {
    file = $0; sub(":.*", "", file)
    header = $0; sub("^[^:]*:#include [<\"]", "", header); sub("[>\"]$", "", header)
    own = $0 ~ "#include \""
    folder = folderOf(file)
    if (!(folder in known)) { print folder " has no row in tests/layers.sh"; known[folder] = 1; bad = 1 }
    target = libraryOf(header)
    if (target == "" && own && index(header, "/")) target = folderOf(header)
    if (target == "" || target == folder) next
    used[folder, target] = 1
    if (!((folder, target) in may)) { print file " must not include " header; bad = 1 }
  }
  END {
    for (pair in may) {
      if (pair in used) continue
      split(pair, parts, SUBSEP)
      print parts[1] " may include " parts[2] ", but no file does: remove it from tests/layers.sh"
      bad = 1
    }
    if (!bad) print "includes follow the layers"
    exit bad
  }'
