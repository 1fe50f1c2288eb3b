# Sourced by ./demo and ./test, which have set -eu and the repository as current folder: finds a
# Python and prepares virtual environments in the repository.
#
# An environment holds pallas-port in editable mode with its test extra and, on Linux, what offline
# compilation for a GPU needs. It is used as it is while its stamp file agrees with pyproject.toml
# and this file; otherwise the packages are installed again on top.

# Prints the path of the first usable Python >= 3.12, or fails. Free-threaded builds are passed over:
# not every dependency supports them.
find_python() {
  for candidate in python3 python3.12 python3.13 python3.14 \
    "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.*/bin/python3 \
    "$(uv python find '>=3.12' 2>/dev/null || true)"; do
    [ -n "$candidate" ] || continue
    "$candidate" - 2>/dev/null <<'PYTHON' && return
import sys, sysconfig
import ensurepip, venv
if sys.version_info < (3, 12) or sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(1)
print(sys.executable)
PYTHON
  done
  return 1
}

# prepare FOLDER JAX: makes the environment FOLDER, with the JAX that the requirement JAX names.
prepare() {
  venv=$1
  stamp=$(printf '%s\n' "$2" | cat - pyproject.toml scripts/setup.sh | cksum)
  if [ "$(cat "$venv/stamp" 2>/dev/null)" = "$stamp" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    return
  fi
  rm -f "$venv/stamp"
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || {
      echo "pallas-port needs Python 3.12 or newer with the venv module; install one (for example 'pyenv install 3.12', 'uv python install 3.12', or your system's python3.12 and python3.12-venv) and run this again." >&2
      exit 1
    }
    echo "Making $venv with $("$python" --version)." >&2
    "$python" -m venv --clear "$venv"
  fi
  echo "Installing packages into $venv (the first time takes minutes)." >&2
  # Twice quiet: errors only, no warnings about the caches and indexes of this machine.
  pip="$venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check"
  $pip --editable '.[test]' "$2"
  if [ "$(uname -s)" = Linux ]; then
    # The extra `compile` without the rest of CUDA, see pyproject.toml.
    version=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("jax"))')
    $pip --no-deps "jax-cuda13-plugin==$version" "jax-cuda13-pjrt==$version" \
      'nvidia-cuda-nvcc>=13,<14' 'nvidia-cuda-nvdisasm>=13,<14' 'nvidia-nvvm>=13,<14'
  fi
  printf '%s\n' "$stamp" >"$venv/stamp"
}
