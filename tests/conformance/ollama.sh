#!/usr/bin/env bash
# A real Ollama for the tests: CPU only, text only, with tiny models whose answers are known (README.md beside this file).
#
#   ollama.sh DIR [CACHE]                       build, or take from CACHE; returns at once when DIR is complete
#   ollama.sh start DIR [PORT] [NAME=VALUE...]  serve DIR on 127.0.0.1:PORT (28434), print the pid once it answers
#   ollama.sh llama DIR [PORT] [FLAG...]        serve its model "tiny" by llama.cpp's own server, which takes FLAGs such as --api-key KEY
#   ollama.sh stop DIR [PORT]                   stop the server on that port and wait for it
#
# CACHE is ${XDG_CACHE_HOME:-~/.cache}/fairway when not given. MODELS=PATH before start serves another store. No model is
# downloaded. Linux x86-64; needs go, g++, git, cmake, ninja and npm.
set -euo pipefail

readonly ollama=0.32.15
# The npm package that carries a llama.cpp release as source and, for this platform, as libraries.
readonly llama=3.21.1
readonly port=28434

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() {
	echo "ollama.sh: $1" >&2
	exit "${2:-1}"
}

usage() {
	sed -n '4,7s/^#   //p' "$here/ollama.sh" >&2
	exit 2
}

# absolute PATH: the path itself, made if need be
absolute() {
	mkdir -p "$1"
	(cd "$1" && pwd)
}

# usable DIR: the binaries there start, and are of the wanted versions
usable() {
	[[ -f $1/version && $(<"$1/version") == "$ollama $llama" ]] || return 1
	HOME=$1 "$1/bin/ollama" --version 2>&1 | grep -qF "$ollama" && "$1/lib/ollama/llama-server" --version >/dev/null 2>&1
}

# build OUT ARCHIVES: everything, into OUT
build() {
	local out=$1 archives=$2 tool
	[[ $(uname -sm) == "Linux x86_64" ]] || die "only Linux x86-64 is supported" 2
	for tool in go g++ git cmake ninja npm; do
		command -v "$tool" >/dev/null || die "$tool is missing (Debian: g++ git cmake ninja-build, and Node.js)" 2
	done
	local work=$out.work
	rm -rf "$out" "$work"
	mkdir -p "$out/bin" "$out/lib/ollama" "$archives" "$work/source" "$work/libs"

	GOBIN=$out/bin go install -ldflags "-X=github.com/ollama/ollama/version.Version=$ollama" "github.com/ollama/ollama@v$ollama"

	# Two archives and none of their dependencies: the source as a git bundle, the libraries for this platform.
	local source=$archives/node-llama-cpp-$llama.tgz libs=$archives/node-llama-cpp-linux-x64-$llama.tgz
	if [[ ! -s $source || ! -s $libs ]]; then
		npm pack --silent --pack-destination "$archives" "node-llama-cpp@$llama" "@node-llama-cpp/linux-x64@$llama" >/dev/null
	fi
	tar xzf "$source" -C "$work/source"
	tar xzf "$libs" -C "$work/libs"
	git clone --quiet -c advice.detachedHead=false "$work/source/package/llama/gitRelease.bundle" "$work/llama.cpp"
	cp "$work"/libs/package/bins/linux-x64/*.so "$out/lib/ollama/"

	server "$work" "$out/lib/ollama"
	echo "$ollama $llama" >"$out/version"
	usable "$out" || die "built, but the result does not start"
	rm -rf "$work"
}

# server WORK LIB: llama-server and llama-quantize into LIB. Only their own sources are compiled, without optimisation: the
# libraries, where the time goes at run time, are prebuilt. Their media part is missing; stubs stand in for it.
server() {
	local work=$1 lib=$2
	cd "$work"
	cmake -S llama.cpp -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O0 -DNDEBUG" \
		-DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAMA_OPENSSL=OFF \
		-DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
		-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >cmake.log 2>&1 || { tail -20 cmake.log >&2; die "cmake failed"; }

	local -a objects libs include
	mapfile -t objects < <(ninja -C build -t commands llama-server | grep -oE -- '-o [^ ]+\.o ' | cut -d' ' -f2 |
		grep -E 'tools/(server|ui)/|vendor/|build-info' | grep -v 'embed\.cpp' | sort -u)
	ninja -C build "${objects[@]}" >ninja.log 2>&1 || { tail -20 ninja.log >&2; die "compiling llama-server failed"; }

	mapfile -t libs < <(cd "$lib" && printf -- '-l:%s\n' libllama-common.so libllama.v*.so libggml.v*.so libggml-base.so)
	libs=(-L"$lib" "${libs[@]}" -lpthread -Wl,-rpath,'$ORIGIN')
	include=(-std=c++17 -Illama.cpp/tools/mtmd -Illama.cpp/include -Illama.cpp/ggml/include -Illama.cpp/common -Illama.cpp/vendor)
	# A first link, which fails, tells what the stubs must define.
	(cd build && g++ -o ../probe "${objects[@]}" "${libs[@]}" 2>&1 || true) |
		grep -oE 'undefined reference to .*' | grep -oE 'mtmd_[a-z0-9_]+' | sort -u >undefined
	(cd "$here" && go run ./tinymodels stub "$work/undefined" "$work/llama.cpp/tools/mtmd/mtmd.h" "$work/llama.cpp/tools/mtmd/mtmd-helper.h") >stub.cpp
	g++ -O0 "${include[@]}" -c stub.cpp -o stub.o
	(cd build && g++ -o "$lib/llama-server" "${objects[@]}" ../stub.o "${libs[@]}")
	g++ -O0 "${include[@]}" -o "$lib/llama-quantize" llama.cpp/tools/quantize/*.cpp \
		build/common/CMakeFiles/llama-common-base.dir/build-info.cpp.o "${libs[@]}"
	cd "$here"
}

# models DIR: the store, when it is not the generator's present one
models() {
	local want
	want=$(cat "$here"/tinymodels/*.go | sha256sum)
	[[ -f $1/models/.generator && $(<"$1/models/.generator") == "$want" ]] && return
	rm -rf "$1/models"
	mkdir -p "$1/models"
	(cd "$here" && go run ./tinymodels store "$1/models")
	cp "$here/Modelfile" "$1/Modelfile"
	echo "$want" >"$1/models/.generator"
}

make_dir() {
	local dir cache kept
	dir=$(absolute "$1")
	cache=$(absolute "${2:-${XDG_CACHE_HOME:-$HOME/.cache}/fairway}")
	if ! usable "$dir"; then
		kept=$cache/ollama-$ollama-$llama
		usable "$kept" || {
			build "$kept.part" "$cache/npm"
			rm -rf "$kept"
			mv "$kept.part" "$kept"
		}
		rm -rf "$dir/bin" "$dir/lib" "$dir/version"
		cp -r "$kept/bin" "$kept/lib" "$dir/"
		cp "$kept/version" "$dir/version" # last: it says that the rest is there
	fi
	models "$dir"
	echo "Ollama $ollama is ready in $dir"
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

start() {
	local dir=$1 at=${2:-$port} store
	shift $(($# > 1 ? 2 : 1))
	dir=$(cd "$dir" && pwd)
	store=$(cd "${MODELS:-$dir/models}" && pwd)
	launch "$dir" "$at" OLLAMA_HOST="127.0.0.1:$at" OLLAMA_MODELS="$store" OLLAMA_NO_CLOUD=1 OLLAMA_NOPRUNE=1 "$@" "$dir/bin/ollama" serve
}

llama() {
	local dir=$1 at=${2:-$port}
	shift $(($# > 1 ? 2 : 1))
	dir=$(cd "$dir" && pwd)
	launch "$dir" "$at" "$dir/lib/ollama/llama-server" --model "$dir/models/tiny.gguf" --alias tiny --host 127.0.0.1 --port "$at" "$@"
}

# launch DIR PORT [NAME=VALUE...] COMMAND...: run it, wait until it answers, print its pid. Nothing of the caller's environment
# reaches it: an OLLAMA_* or LLAMA_* left there would change the answers.
launch() {
	local dir=$1 at=$2 run pid
	shift 2
	run=$dir/run/$at
	mkdir -p "$run.home"
	listens "$at" && die "port $at is taken"
	env -i PATH="$PATH" HOME="$run.home" "$@" >"$run.log" 2>&1 </dev/null &
	pid=$!
	echo "$pid" >"$run.pid"
	for ((i = 0; i < 200; i++)); do
		listens "$at" && { echo "$pid"; return; }
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
	tail -5 "$run.log" >&2
	die "no answer on port $at"
}

stop() {
	local run pid
	run=$1/run/${2:-$port}
	[[ -f $run.pid ]] || return 0
	pid=$(<"$run.pid")
	rm -f "$run.pid"
	kill "$pid" 2>/dev/null || return 0
	for ((i = 0; i < 100; i++)); do
		kill -0 "$pid" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -9 "$pid" 2>/dev/null || true
}

case ${1:-} in
start | llama | stop)
	[[ $# -ge 2 ]] || usage
	"$@" # the function of that name
	;;
"" | -*) usage ;;
*)
	[[ $# -le 2 ]] || usage
	make_dir "$@"
	;;
esac
