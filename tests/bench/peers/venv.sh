# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the scripts of this folder share: a virtual environment with PyTorch and DeepSpeed (some 6 GB), $PEERS_VENV or ./peers-venv,
# which is made once. Where it cannot be had, the script says why and exits with 77. With PEERS_PYTHON, that interpreter is used as it is.
venv=${PEERS_VENV:-peers-venv}

no_peers() {
    echo "peers: skipped: $*" >&2
    exit 77
}

if [ -z "${PEERS_PYTHON-}" ] && ! [ -e "$venv/ready" ]; then
    command -v python3 >/dev/null || no_peers "no python3"
    command -v c++ >/dev/null || no_peers "no C++ compiler, which cpu_adam is built with"
    python3 -m venv "$venv" || no_peers "python3 has no venv"
    echo "peers: installing PyTorch and DeepSpeed into $venv (see $venv.log)" >&2
    {
        "$venv/bin/pip" install torch numpy ninja setuptools wheel &&
            DS_ACCELERATOR=cpu "$venv/bin/pip" install --no-build-isolation deepspeed
    } >"$venv.log" 2>&1 || no_peers "PyTorch or DeepSpeed could not be installed: $(tail -n 1 "$venv.log")"
    touch "$venv/ready"
fi
# shellcheck disable=SC2034 # used by those who source this
python=${PEERS_PYTHON:-$venv/bin/python}
export DS_ACCELERATOR=cpu
