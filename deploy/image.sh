#!/usr/bin/env bash
# Builds the image of `glass serve` out of a program that was built before:
#   cargo build --release -p glasshouse-cli && deploy/image.sh [PROGRAM] [NAME]
set -euo pipefail
program=$(realpath "${1:-target/release/glass}")
name=${2:-glasshouse}
here=$(cd "$(dirname "$0")" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

install -D -m 755 "$program" "$place/root/usr/bin/glass"
# Libraries where the loader looks for them; a program that is linked statically has none.
{ ldd "$program" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
  install -D -m 755 "$library" "$place/root$library"
done
# Settings that serve inside of the container's network; a file that is mounted there is stronger.
install -D -m 644 "$here/serve.toml" "$place/root/etc/glasshouse/serve.toml"
install -d -m 1777 "$place/root/tmp"
cp "$here/Dockerfile" "$place/"
docker build --quiet --tag "$name" "$place"
