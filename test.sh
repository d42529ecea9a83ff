#!/usr/bin/env bash
# Builds everything and runs every test. Needs cargo; as root it installs from Debian's packages what the tests use
# beside that, otherwise it says what is missing and the tests say what they skip.
set -euo pipefail
cd "$(dirname "$0")"

# package: a program that it brings
wanted=(gcc:cc python3-minimal:/usr/bin/python3 bubblewrap:bwrap util-linux:setsid procps:ps
  docker-registry:docker-registry skopeo:skopeo umoci:umoci busybox-static:busybox openssl:openssl btrfs-progs:mkfs.btrfs
  e2fsprogs:mkfs.ext4 git:git docker.io:dockerd podman:podman runsc:runsc debootstrap:debootstrap musl-tools:musl-gcc
  nodejs:node npm:npm chromium:chromium)
missing=()
for entry in "${wanted[@]}"; do
  command -v "${entry#*:}" >/dev/null || missing+=("${entry%%:*}")
done
# The clients of the service are installed from PyPI and npm, below target/.
/usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if ((${#missing[@]})); then
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "test.sh: installing ${missing[*]}" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  else
    echo "test.sh: not installed, and some tests will skip because of it: ${missing[*]}" >&2
  fi
fi

# Where a skip would hide that nothing was tested, it is a failure.
if [[ ${CI:-} == true ]]; then
  export MUST_RUN=${MUST_RUN:-native-root,native-rootless,escape,images,disks,docker,podman,runsc,serve,viewer}
fi

cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo build --workspace --locked
cargo test --workspace --locked --no-fail-fast
