#!/usr/bin/env bash
# Runs the block of the README's "Five minutes" as it is written.
#
#     xtask/five-minutes.sh [path to tidegate]
#
# Two things differ from a reader's shell: `tidegate` is the program that is named, not one that
# `cargo install` builds, and the port is a free one instead of 8080. The first command that fails
# ends the run with its exit code. LEFT_OUT is a pattern of lines that are not run, JOURNAL_SIZE the
# size of the files of the log.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
program=$(realpath "${1:-$root/target/release/tidegate}")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

block=$(awk '/^## /{in_part = $0 == "## Five minutes"}
             in_part && /^```/{in_block = !in_block; next}
             in_part && in_block' "$root/README.md")
case $block in
*"tidegate run &"*"tidegate audit"*) ;;
*) echo "the README has no block of five minutes" >&2; exit 1 ;;
esac

port=$((20000 + RANDOM % 10000))
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    port=$((20000 + RANDOM % 10000))
done

mkdir "$dir/bin" "$dir/tmp"
ln -s "$program" "$dir/bin/tidegate"
{
    # A failed line must not leave the server behind.
    echo "trap 'jobs -p | xargs -r kill' EXIT"
    grep -v "${LEFT_OUT:-^cargo install}" <<<"$block" | sed "s/localhost:8080/localhost:$port/"
} >"$dir/block.sh"

env -i PATH="$dir/bin:$PATH" TMPDIR="$dir/tmp" SERVER_LISTEN="127.0.0.1:$port" \
    LOG_EMBEDDED_JOURNAL_SIZE="${JOURNAL_SIZE:-64MiB}" \
    bash -xeuo pipefail "$dir/block.sh"
