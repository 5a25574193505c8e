#!/usr/bin/env bash
# The test suite.
#
#   tests/run.sh          everything (default): checks, tests under -race, fuzz targets for 10 s each, a real Ollama, an xcaddy build
#   tests/run.sh quick    go vet and go test of all packages, nothing else
#   tests/run.sh fuzz     every fuzz target for FUZZTIME (5m)
#   tests/run.sh bench    the benchmarks
#   tests/run.sh nemesis  a fleet of gateways in which something is always broken, for NEMESIS (10m), and the end-to-end tests ROUNDS (5) times under -race
#
# It installs what is missing where it may (as root, where there is apt-get), says what it had to skip and why, and ends in a line of
# counts. With CI set every skip is a failure, and all platforms are built. A test that failed runs once more, and is named as flaky when it
# passes then: docs/adr/0010. Folders that it fills and finds again: FAIRWAY_CACHE (${XDG_CACHE_HOME:-~/.cache}/fairway) and Go's own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly golangci=v2.15.0
readonly quic=v0.64.1
readonly cache=${FAIRWAY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fairway}
readonly mode=${1:-full}
readonly strict=${CI:+yes}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
counts=$work/counts
skips=$work/skips
failures=$work/failures
flaky=$work/flaky
touch "$counts" "$skips" "$failures" "$flaky"
# The version-control stamp would fail in a clone that another user owns.
export GOFLAGS="${GOFLAGS:-} -buildvcs=false"
export GOTOOLCHAIN=${GOTOOLCHAIN:-local}

# step NAME COMMAND...: run a check; its output shows when it fails
step() {
	local name=$1 begin=$SECONDS log=$work/step.log
	shift
	if "$@" >"$log" 2>&1; then
		echo "1 0 0" >>"$counts"
		printf 'ok    %5ds  %s\n' $((SECONDS - begin)) "$name"
	else
		echo "0 1 0" >>"$counts"
		echo "$name" >>"$failures"
		printf 'FAIL  %5ds  %s\n' $((SECONDS - begin)) "$name"
		tail -n 200 "$log"
	fi
}

# skip NAME WHY: note what could not run
skip() {
	echo "$1: $2" >>"$skips"
	if [[ -n $strict ]]; then
		echo "0 1 0" >>"$counts"
		echo "$1 (skipped: $2)" >>"$failures"
	else
		echo "0 0 1" >>"$counts"
	fi
	echo "skip          $1: $2"
}

# tests NAME FLAG... -- PACKAGE...: go test, counted test by test. A test that failed runs once more, alone.
tests() {
	local name=$1 begin=$SECONDS package test said
	local -a flags=() again=(-again "$work/again")
	shift
	while [[ $1 != -- ]]; do flags+=("$1"); shift; done
	shift
	echo "----  $name"
	rm -f "$work/again"
	[[ $mode != nemesis ]] || again=()
	if ! go test -json "$@" "${flags[@]}" 2>&1 | "$work/tally" ${strict:+-strict} -counts "$counts" "${again[@]}"; then
		[[ ${PIPESTATUS[1]} == 0 && -f $work/again ]] || echo "$name" >>"$failures"
	fi
	if [[ -f $work/again ]]; then
		while read -r package test said; do
			echo "----  once more: $test"
			if go test -json "$package" "${flags[@]}" -count 1 -run "^$test\$" 2>&1 </dev/null | "$work/tally" ${strict:+-strict} -counts "$counts"; then
				echo "${package#github.com/fairway-edge/fairway/} $test: $said" >>"$flaky"
			else
				echo "${package#github.com/fairway-edge/fairway/} $test: $said" >>"$failures"
			fi
		done <"$work/again"
	fi
	printf -- '----  %s: %d s\n' "$name" $((SECONDS - begin))
}

# need COMMAND PACKAGE...: install packages when the command is missing
need() {
	local command=$1
	shift
	command -v "$command" >/dev/null && return
	[[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 1
	[[ -f $work/apt ]] || apt-get update -qq >/dev/null 2>&1 || true
	touch "$work/apt"
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 || true
	command -v "$command" >/dev/null
}

# packages PATTERN...: what go list finds, without what does not exist yet
packages() { go list "$@" 2>/dev/null || true; }

formatted() {
	local bad
	bad=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 -r ls 2>/dev/null | xargs -r gofmt -l)
	[[ -z $bad ]] || { echo "gofmt -w these:"; echo "$bad"; return 1; }
}

quic_pin() {
	local got
	got=$(go list -m -f '{{.Version}}' github.com/quic-go/quic-go)
	[[ $got == "$quic" ]] || { echo "quic-go is $got; go.mod must say $quic, the newest that Caddy builds with"; return 1; }
}

# generated: remake the protobuf code and compare, whatever release of protoc made it
generated() {
	local pb=tunnel/wire/wire.pb.go result=0
	cp "$pb" "$work/wire.pb.go"
	go generate ./tunnel/wire || result=1
	diff -u -I '^//.*protoc' "$work/wire.pb.go" "$pb" || { echo "$pb is not what wire.proto gives: run go generate ./tunnel/wire"; result=1; }
	cp "$work/wire.pb.go" "$pb"
	return $result
}

lint() {
	local tool=$cache/golangci-lint-$golangci/golangci-lint
	if [[ ! -x $tool ]]; then
		GOBIN=$(dirname "$tool") go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$golangci" || return 1
	fi
	"$tool" run ./...
}

scripts() {
	local f
	for f in xcaddy.sh tests/run.sh tests/conformance/ollama.sh .ci/run; do
		bash -n "$f" || return 1
		[[ -x $f ]] || { echo "$f is not executable"; return 1; }
	done
}

# platform GOOS/GOARCH[/GOARM] PACKAGE: does it build there
platform() {
	local goos goarch goarm
	IFS=/ read -r goos goarch goarm <<<"$1"
	CGO_ENABLED=0 GOOS=$goos GOARCH=$goarch GOARM=${goarm:-} go build -o "$work/cross" "$2" && rm -f "$work/cross"
}

platforms() {
	local p
	for p in linux/amd64 linux/arm64 linux/arm/7 darwin/amd64 darwin/arm64 windows/amd64; do
		step "build node $p" platform "$p" ./nodeclient/cmd/fairway-node
	done
	for p in linux/arm64 darwin/arm64; do
		step "build gateway $p" platform "$p" ./tests/cmd/caddy
	done
}

# xcaddy_build: what users run gives both programs, with the module in one of them
xcaddy_build() {
	./xcaddy.sh &&
		bin/caddy list-modules | grep -x http.handlers.fairway &&
		bin/caddy validate --config Caddyfile.example &&
		bin/fairway-node run --help
}

# fuzz_one FOLDER NAME TIME LOG. At the end of its time the go command may call that a failure, with nothing found (golang/go#75804, until Go 1.27): then it runs once more.
fuzz_one() {
	local begin=$SECONDS
	local -a run=(go test -run '^$' -fuzz "^$2\$" -fuzztime "$3" -parallel 1 "$1")
	if "${run[@]}" >"$4" 2>&1 || { grep -q '^    context deadline exceeded$' "$4" && ! grep -q 'Failing input\|_test.go:\|panic' "$4" && "${run[@]}" >"$4" 2>&1; }; then
		echo "1 0 0" >>"$counts"
		printf 'ok    %5ds  fuzz %s %s: %s\n' $((SECONDS - begin)) "$1" "$2" "$(grep -oE 'execs: [0-9]+' "$4" | tail -1)"
	else
		echo "0 1 0" >>"$counts"
		echo "fuzz $1 $2" >>"$failures"
		printf 'FAIL  %5ds  fuzz %s %s\n' $((SECONDS - begin)) "$1" "$2"
		tail -n 60 "$4"
	fi
}

# fuzz TIME: each target for so long, two at a time
fuzz() {
	local file line name n=0
	while IFS=: read -r file line; do
		name=$(sed -E 's/^func (Fuzz[A-Za-z0-9_]*).*/\1/' <<<"$line")
		n=$((n + 1))
		fuzz_one "./$(dirname "$file")" "$name" "$1" "$work/fuzz.$n" &
		((n % 2)) || wait
	done < <(git grep --untracked -E '^func Fuzz[A-Za-z0-9_]*\(' -- '*_test.go')
	wait
	((n)) || skip fuzz "there is no fuzz target"
}

# real_ollama: build it, or take it from the cache, and tell the tests where it is
real_ollama() {
	if [[ -n ${FAIRWAY_OLLAMA_DIR:-} ]]; then return; fi
	local tool missing=
	for tool in g++ git cmake ninja; do
		case $tool in
		ninja) need ninja ninja-build || missing+=" ninja-build" ;;
		*) need "$tool" "$tool" || missing+=" $tool" ;;
		esac
	done
	# Never npm from apt: Debian's conflicts with a nodejs that came from elsewhere.
	command -v npm >/dev/null || command -v node >/dev/null || need npm npm || missing+=" npm"
	if [[ -n $missing ]]; then
		skip "real Ollama" "cannot install$missing"
	elif [[ $(uname -sm) != "Linux x86_64" ]]; then
		skip "real Ollama" "built for Linux x86-64 only"
	else
		step "real Ollama" tests/conformance/ollama.sh "$cache/ollama" "$cache"
		export FAIRWAY_OLLAMA_DIR=$cache/ollama
	fi
}

# Packages that start whole fleets share two cores badly, so they run after the others and one at a time. Their tests mostly wait, so more of
# them run at once than there are cores. The programs run under the race detector in the end-to-end tests; the others measure.
unit_tests() {
	mapfile -t unit < <(packages ./... | grep -v '/fairway/tests/')
	tests "unit tests" -race -timeout 15m -- "${unit[@]}"
	# Where credentials stay in memory, without the race detector's own copies.
	tests "memory scans" -count 1 -timeout 5m -run 'InMemory|MemoryOfANode' -- ./nodeclient ./nodeclient/adapter/http1
}
system_tests() {
	mapfile -t system < <(packages ./tests/... | grep -v '/tests/e2e')
	FAIRWAY_RACE=1 tests "end-to-end tests" -race -p 1 -parallel 4 -count 1 -timeout 20m -- ./tests/e2e/...
	tests "system tests" -p 1 -parallel 4 -count 1 -timeout 20m -- "${system[@]}"
}

full() {
	step gofmt formatted
	step scripts scripts
	step "quic-go pin" quic_pin
	step "go vet" go vet ./...
	if need protoc protobuf-compiler; then step "generated code" generated; else skip "generated code" "protoc is missing"; fi
	step golangci-lint lint
	# For tests that want them: network namespaces, the Redis store's suite.
	need ip iproute2 || true
	need redis-server redis-server || true
	unit_tests
	real_ollama
	system_tests
	fuzz 10s
	if [[ -n $strict ]]; then platforms; fi
	step "xcaddy build" xcaddy_build
}

summary() {
	local passed failed skipped line
	read -r passed failed skipped < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$counts")
	echo
	[[ -s $skips ]] && { echo "skipped:"; sed 's/^/  /' "$skips"; }
	[[ -s $flaky ]] && { echo "flaky: failed, and passed when run once more:"; sed 's/^/  /' "$flaky"; }
	[[ -s $failures ]] && { echo "failed:"; sed 's/^/  /' "$failures"; }
	# A failure that no counter saw, such as a tally that was killed, still fails the run.
	if [[ -s $failures ]] && ((failed == 0)); then failed=$(wc -l <"$failures"); fi
	echo "took $((SECONDS / 60)) min $((SECONDS % 60)) s"
	line="$passed passed, $failed failed"
	((skipped)) && line+=", $skipped skipped"
	echo "$line"
	((failed == 0))
}

command -v go >/dev/null || { echo "tests/run.sh: Go is missing" >&2; exit 2; }
go build -o "$work/tally" ./tests/cmd/tally
case $mode in
full) full ;;
quick)
	step "go vet" go vet ./...
	mapfile -t all < <(packages ./...)
	tests "all packages" -short -- "${all[@]}"
	;;
fuzz) fuzz "${FUZZTIME:-5m}" ;;
bench)
	go test -run '^$' -bench . -benchmem ./...
	exit
	;;
nemesis)
	need redis-server redis-server || true
	tests "nemesis" -run '^TestNemesis$' -v -timeout 80m -nemesis "${NEMESIS:-10m}" -- ./tests/fleet
	mapfile -t system < <(packages ./tests/e2e/...)
	FAIRWAY_RACE=1 tests nemesis -race -p 1 -count "${ROUNDS:-5}" -timeout 80m -- "${system[@]}"
	;;
*)
	sed -n '4,8s/^#   //p' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac
summary
