#!/usr/bin/env bash
# Checks that each folder includes only headers of folders and libraries that the list below allows (docs/DESIGN.md, "Layers"). Prints each
# include that is not allowed, each folder without a row, each entry that no file uses, and each folder with more than 30 source files; then
# fails.
set -euo pipefail
cd "$(dirname "$0")/.."

# FOLDER | Cleave's folders that it may include | restricted libraries that it may include. The restricted libraries are torch, boost
# (Asio), CLI, cuda, google (protobuf), hwy, openssl, prometheus, yaml-cpp, zstd.
rows='
common/core           |  | yaml-cpp
common/topology       |  |
common/net/frames     | common/core proto | google
common/graph          | common/core proto | zstd
compression/kernels   |  | hwy
client/data/pictures  | client/data/files common/core |
common/config         | common/core |
common/files          | common/core | openssl
common/net/streams    | common/core common/files common/net/frames | boost openssl
common/net            | common/core common/net/frames common/net/streams proto | boost
common/http           | common/core common/net/streams | boost
common/program        | common/config common/core common/files | CLI
common/replicas       | common/core common/files common/net/streams | boost torch
client/report/records | common/core common/files common/topology |
client/report         | client/report/records common/core common/files common/http |
tools/link            | common/config common/core common/files common/net/streams common/program | CLI boost
tools/relay           | common/core common/files common/net/streams common/program | CLI boost
common/resources      | common/core |
common/checkpoint     | common/core common/files common/resources |
common/codec          | common/core common/resources common/topology |
common/engine         | common/codec common/core common/resources common/topology |
common/link           | common/codec common/core common/engine common/files common/net common/net/frames common/net/streams common/resources common/topology proto | boost
common/link/probe     | common/core common/engine common/files common/link common/net proto |
common/predict        | common/core common/engine common/link common/net/frames common/topology |
common/record         | common/core common/engine common/files common/link common/net common/predict proto | boost
common/device         | common/core common/resources | torch
common/model          | common/codec common/core common/resources common/topology | torch
common/model/graph    | common/core common/files common/graph common/model common/resources | torch
common/model/stage    | common/codec common/core common/device common/graph common/model common/topology | torch
common/model/zoo      | common/core common/model common/model/stage | torch
compression/parts     | common/codec common/resources compression/kernels |
compression           | common/codec common/core compression/kernels compression/parts | zstd
common/cohort         | common/core common/engine common/model/stage common/topology proto |
common/run            | common/checkpoint common/codec common/cohort common/config common/core common/device common/engine common/files common/graph common/http common/link common/model common/model/graph common/model/stage common/net/streams common/predict common/record common/resources common/topology compression proto | prometheus torch
compression/device    | common/codec common/core common/resources compression compression/parts |
cuda                  | common/core common/device compression/device | torch
client/data/files     | common/core common/files common/resources |
client/data/samples   | client/data/files client/data/pictures common/codec common/core common/files common/resources |
client/data/tokens    | client/data/files common/core |
client/data/formats   | client/data/files client/data/pictures client/data/samples client/data/tokens common/codec common/config common/core common/files |
client/start          | client/data/files client/data/formats client/data/pictures client/data/samples common/config common/core common/topology |
client/codecs         | common/codec common/predict common/topology compression |
client/config         | client/codecs client/data/files client/data/formats client/data/samples common/checkpoint common/config common/core common/files common/graph common/model common/model/graph common/model/stage common/program common/run common/topology compression | CLI
client/run            | client/config client/data/samples common/checkpoint common/codec common/core common/device common/engine common/files common/link common/model common/net common/net/streams common/predict common/record common/resources common/run common/topology proto | boost
client/train          | client/codecs client/config client/data/samples client/run common/checkpoint common/codec common/cohort common/core common/device common/engine common/files common/graph common/link common/model common/model/stage common/predict common/record common/resources common/run common/topology | boost
client/planning       | client/codecs client/config client/run client/train common/codec common/core common/device common/link common/link/probe common/predict common/run compression |
client/evaluate       | client/config client/data/samples client/run client/train common/codec common/cohort common/core common/device common/files common/graph common/model/stage common/resources common/run | torch
client/sweep          | client/config client/report client/report/records client/run common/checkpoint common/config common/core common/files common/program common/run common/topology |
client/diagnose       | client/planning client/run client/train common/codec common/core common/files common/link common/link/probe common/net/streams common/program common/resources common/run compression/parts proto | boost openssl
client/commands       | client/codecs client/config client/data/files client/data/formats client/data/pictures client/data/samples client/diagnose client/evaluate client/planning client/report client/run client/start client/sweep client/train common/codec common/config common/core common/device common/engine common/files common/graph common/http common/link/probe common/model common/model/graph common/model/stage common/predict common/program common/record common/resources common/run compression | CLI torch
client                | client/commands common/engine common/files | CLI
stage                 | common/codec common/core common/device common/engine common/files common/link common/model common/model/graph common/model/stage common/net/frames common/resources common/run proto | google torch
server/access         | common/config common/core common/files common/net common/net/streams common/program common/run | boost openssl
server/config         | common/config common/core common/files common/model common/net common/net/streams common/replicas common/resources common/run common/topology server/access | boost
server/store          | common/checkpoint common/codec common/cohort common/core common/device common/engine common/files common/link common/record common/resources common/run common/topology proto server/access server/config | boost
server/status         | common/core common/engine common/files common/link common/net/streams common/program server/config | boost
server/cohort         | common/core common/engine common/topology |
server/run            | common/cohort common/core common/device common/engine common/files common/link common/link/probe common/model/stage common/net common/net/streams common/replicas common/resources common/run common/topology proto server/access server/cohort server/config server/status server/store stage | boost
server/sessions       | common/core common/device common/files common/link common/link/probe common/net common/net/frames common/net/streams common/replicas common/resources common/run common/topology proto server/access server/cohort server/config server/run server/status server/store | boost
server/commands       | common/checkpoint common/core common/device common/files common/program common/run server/access server/config server/status server/store | CLI
server                | common/core common/files common/http common/net/streams common/program common/run server/commands server/config server/sessions stage | CLI
'

sources=$(find client common compression cuda server stage tests tools \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) -printf '%h\n' | sort | uniq -c)
crowded=$(awk '$1 > 30 { print $2 " has " $1 " source files, more than 30: divide it" }' <<<"$sources")
if [ -n "$crowded" ]; then
  echo "$crowded"
  exit 1
fi

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
