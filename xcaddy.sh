#!/usr/bin/env bash
# Builds bin/caddy (Caddy with Fairway, by xcaddy) and bin/fairway-node (the node, a static binary).
#
#   ./xcaddy.sh        build what is not up to date
#   ./xcaddy.sh run    build, then serve Caddyfile.example: a gateway on 127.0.0.1:11435 with a node in the same process
#
# Needs Go, at least the version that go.mod names.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly module=github.com/fairway-edge/fairway
readonly xcaddy=v0.4.5
readonly caddy=v2.11.9
readonly quic=v0.64.1 # the newest that this Caddy builds with; go.mod says more

say() { echo "xcaddy.sh: $*" >&2; }

# sources: a checksum of all that the binaries are made of
sources() {
	{
		go version
		find . -name .git -prune -o -path ./bin -prune -o -path ./tests -prune -o -type f -name '*.go' ! -name '*_test.go' -print0 |
			LC_ALL=C sort -z | xargs -0 cksum
		cksum go.mod go.sum xcaddy.sh
	} | cksum
}

# module_version: the commit as Go spells it, for `caddy fairway status` to show; a made-up one where git does not know
module_version() {
	TZ=UTC git show -s --date=format-local:%Y%m%d%H%M%S --abbrev=12 --format=v0.0.0-%cd-%h HEAD 2>/dev/null || echo v0.0.0-19700101000000-000000000000
}

# stand_in DIR: a file proxy that knows the module by that one version. xcaddy asks for versions even of a module that it replaces by a
# folder, and this one may not be published: another proxy's refusal would end the build. Its content comes from the folder all the same.
stand_in() {
	local at=$1/$module/@v version
	version=$(module_version)
	mkdir -p "$at"
	: >"$at/list"
	echo "{\"Version\":\"$version\",\"Time\":\"1970-01-01T00:00:00Z\"}" | tee "$at/$version.info" >"$1/$module/@latest"
	cp go.mod "$at/$version.mod"
	# The package's own path is asked for as a module, too: it is none.
	mkdir -p "$1/$module/caddymodule/@v"
	: >"$1/$module/caddymodule/@v/list"
}

build_caddy() {
	local tool=${XDG_CACHE_HOME:-$HOME/.cache}/fairway/xcaddy-$xcaddy/xcaddy proxy=$PWD/bin/.proxy
	[[ -x $tool ]] || GOBIN=$(dirname "$tool") go install "github.com/caddyserver/xcaddy/cmd/xcaddy@$xcaddy"
	rm -rf "$proxy"
	stand_in "$proxy"
	say "building bin/caddy (the first time takes some minutes)"
	GOPROXY="file://$proxy,$(go env GOPROXY)" GONOSUMDB="$module,$(go env GONOSUMDB)" \
		"$tool" build "$caddy" --with "$module/caddymodule" --replace "$module=." --output bin/caddy.new >bin/xcaddy.log 2>&1 || {
		tail -30 bin/xcaddy.log >&2
		say "xcaddy failed; all of it is in bin/xcaddy.log"
		return 1
	}
	local got
	got=$(go version -m bin/caddy.new | awk '$2 == "github.com/quic-go/quic-go" { print $3 }')
	[[ $got == "$quic" ]] || {
		say "bin/caddy was built with quic-go ${got:-unknown}, want $quic"
		return 1
	}
	rm -rf "$proxy"
	mv bin/caddy.new bin/caddy
}

build_node() {
	local version
	version=$(git describe --tags --always --dirty 2>/dev/null || echo dev)
	say "building bin/fairway-node"
	CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=$version" -o bin/fairway-node ./nodeclient/cmd/fairway-node
}

build() {
	command -v go >/dev/null || { say "Go is missing: https://go.dev/doc/install"; return 2; }
	local now
	now=$(sources)
	if [[ -x bin/caddy && -x bin/fairway-node && -f bin/.sources && $(<bin/.sources) == "$now" ]]; then
		say "bin/caddy and bin/fairway-node are up to date"
		return
	fi
	mkdir -p bin
	build_node
	build_caddy
	echo "$now" >bin/.sources
}

hints() {
	cat <<'TEXT'

The gateway serves on 127.0.0.1:11435: the models of the Ollama on 127.0.0.1:11434, or, where none answers, the model "demo".
In another terminal:

  curl -N 127.0.0.1:11435/api/chat -d '{"model":"demo","messages":[{"role":"user","content":"hi"}]}'
  OLLAMA_HOST=127.0.0.1:11435 ollama list
  bin/caddy fairway nodes

To add a machine, let the gateway listen where that machine reaches it (README, "Add a machine"), then:

  bin/caddy fairway token --node NAME

TEXT
}

case ${1:-} in
"") build ;;
run)
	build
	hints
	exec bin/caddy run --config Caddyfile.example
	;;
*)
	sed -n '4,5s/^#   //p' xcaddy.sh >&2
	exit 2
	;;
esac
