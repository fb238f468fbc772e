#!/usr/bin/env bash
# Checks the includes against the layers of docs/DESIGN.md: prints each line that violates them, and
# fails.
set -u
cd "$(dirname "$0")/.."
bad=0
refuse() {  # refuse WHAT PATTERN FOLDER…
  local what=$1 pattern=$2
  shift 2
  local lines
  lines=$(grep -rnE "#include [<\"]($pattern)" --include='*.h' --include='*.cpp' --include='*.cu' "$@" 2>/dev/null) || return 0
  echo "$what:"
  echo "$lines"
  bad=1
}
refuse "common knows no codec, no daemon" "(client|server|compression)/" common
refuse "codecs know no daemon" "(client|server)/" compression
refuse "common and codecs do not know the daemons" "daemon/" common compression
refuse "what daemons share knows neither of them" "(client|server)/" daemon
refuse "client and server do not know each other" "server/" client
refuse "client and server do not know each other" "client/" server
refuse "core, net, http, codec and pipeline are free of Torch" "(torch|ATen|c10)/" common/core common/net common/http common/codec common/pipeline
refuse "codecs are free of Torch" "(torch|ATen|c10)/" compression
refuse "core, codec, model and codecs are free of Asio" "boost/" common/core common/codec common/model compression
refuse "only the daemons' loader knows the GPU library" "cuda/" common compression client server
refuse "the GPU library knows devices and kernels, not daemons" "(client|server|daemon)/|compression/[^d]|common/(net|pipeline)/" cuda
refuse "kernels are free of Torch and CUDA's headers" "(torch|ATen|c10|cuda)" compression/device
refuse "core stands at the bottom" "common/(net|http|codec|pipeline|model)/" common/core
refuse "codec knows core only" "common/(net|http|pipeline|model)/" common/codec
refuse "net knows core only" "common/(http|codec|pipeline|model)/" common/net
refuse "http knows how to listen, and nothing of the wire" "common/(codec|pipeline|model)/|proto/|common/net/[^il]" common/http
refuse "pipeline knows neither models nor pages" "common/(model|http)/" common/pipeline
refuse "models do not know the wire" "common/(net|http|pipeline)/" common/model
refuse "reports know files and pages, and nothing of training" \
  "client/[^r]|(server|daemon|compression|torch|ATen|c10)/|common/(codec|pipeline|model|net)/" client/report
refuse "the link emulator knows the programs' options, and nothing of the daemons" \
  "(client|server|compression|torch|ATen|c10)/|daemon/[^p]|common/(codec|pipeline|model)/" tools
refuse "what shapes the link is free of Asio" "boost/|common/net/" tools/link/ring.* tools/link/script.* tools/link/shaper.* tools/link/units.*
refuse "nothing stands on the link emulator" "tools/" common compression client server daemon cuda
[ "$bad" = 0 ] && echo "includes follow the layers"
exit "$bad"
