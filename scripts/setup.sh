#!/usr/bin/env bash
# Complete the virtual environment: scripts/setup.sh VENV STAMP serve|dev|bench
# STAMP is made last. PYTHON names the interpreter; else python3.11 or python3 is taken.
set -euo pipefail

venv=$1 stamp=$2 purpose=$3
venv_gb=6

say() { echo "setup: $*"; }
refuse() { echo "setup: $*" >&2; exit 1; }
is_python_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

check_machine() {
    [ "$(uname -sm)" = "Linux x86_64" ] ||
        refuse "this is $(uname -sm), and vLLM's CPU build is for Linux x86_64." \
            "For Ascend see requirements/ascend.txt."
    local free_kb
    free_kb=$(df -Pk "$(dirname "$venv")" | awk 'NR == 2 {print $4}')
    ((free_kb > venv_gb * 1000000)) ||
        refuse "$((free_kb / 1000)) MB free, and the environment takes $venv_gb GB." \
            "Free some, or give a folder on another disk: make VENV=folder …"
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3}; do
        is_python_311 "$candidate" || continue
        "$candidate" -c 'import ensurepip, venv' 2>/dev/null ||
            refuse "$candidate lacks venv. Install it (Debian: apt install python3.11-venv)."
        echo "$candidate"
        return
    done
    refuse "no Python 3.11 as ${PYTHON:-python3.11 or python3}." \
        "Install it (Debian: apt install python3.11 python3.11-venv), or name it: make PYTHON=path …"
}

make_venv() {
    # pip itself is run, not only found: its first line names the place that the venv was made at.
    if "$venv/bin/pip" --version >/dev/null 2>&1; then
        is_python_311 "$venv/bin/python" ||
            refuse "$venv is not of Python 3.11. Remove it, or give another folder: make VENV=folder …"
        return
    fi
    check_machine
    local python
    python=$(find_python)
    say "making $venv with $($python --version)"
    "$python" -m venv --clear "$venv"
}

# install WHAT COUNT ARGUMENT…: pip install, with a line now and then.
install() {
    local what=$1 count=$2 seen=0 line
    shift 2
    say "installing $what"
    "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@" |
        while read -r line; do
            case $line in
            Collecting*) ((++seen % 25)) || say "  looked up $seen of $count" ;;
            Installing*) ((count < 50)) || say "  unpacking (a minute or two)" ;;
            esac
        done
}

install_list() {
    local file=$1 count
    shift
    count=$(grep -c == "$file")
    install "$file ($count pinned)" "$count" "$@" -r "$file"
}

make_venv
case $purpose in
serve)
    install_list requirements/cpu.txt
    install_list requirements/cpu-nodeps.txt --no-deps
    install "rayscend" 1 --no-deps --no-build-isolation -e .
    ;;
dev | bench)
    install_list "requirements/$purpose.txt"
    ;;
esac
rm -f "${stamp%-*}"-*
touch "$stamp"
