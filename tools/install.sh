#!/usr/bin/env bash
# Checks for the tools that the build calls, and with the argument `test` for those of the tests of drivers. Installs
# missing Debian packages if it runs as root. Rust, Go and Node are only named if missing, because users install those
# in different ways.
set -euo pipefail

missing=()
need() { # command, Debian package
    command -v "$1" >/dev/null || missing+=("$2")
}

need cc build-essential
need c++ build-essential
need git git
need openssl openssl
need python3 python3
need rg ripgrep
need tar tar
if command -v python3 >/dev/null && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    missing+=(python3-venv)
fi

if [[ ${1:-} == test ]]; then
    need java default-jdk-headless
    need mvn maven
    need psql postgresql-client
    compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
fi

if ((${#missing[@]})); then
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        echo "installing ${missing[*]}"
        apt-get -o Acquire::Retries=3 update -qq
        # The tests start PostgreSQL themselves, so that its package need not.
        if [[ " ${missing[*]} " == *' postgresql '* && ! -e /etc/postgresql-common/createcluster.conf ]]; then
            mkdir -p /etc/postgresql-common
            echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
        fi
        DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -y -qq "${missing[@]}" >/dev/null
    else
        echo "please install: ${missing[*]} (on Debian: sudo apt-get install ${missing[*]})" >&2
        exit 1
    fi
fi

absent=()
for tool in cargo go node npm; do
    command -v "$tool" >/dev/null || absent+=("$tool")
done
if ((${#absent[@]})); then
    echo "please install: ${absent[*]} (cargo comes with Rust 1.95 or later, npm with Node.js 18 or later)" >&2
    exit 1
fi
