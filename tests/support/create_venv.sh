#!/bin/sh
# Creates a virtual environment. Usage: create_venv.sh DIRECTORY [PYTHON]
# Without PYTHON, it uses a Python from 3.11 on that is on the path: the newest of those that were built with optimizations,
# because headrace then uses less CPU time; if there is none, the newest. The builds of Linux distributions (/usr/bin) are
# optimized, pyenv's default build is not.
venv=$1
chosen=$2
check='
import sys, sysconfig
if sys.version_info < (3, 11):
    sys.exit(1)
import ensurepip, os, venv
executable = os.path.realpath(sys.executable)
optimized = executable.startswith("/usr/bin/") or "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
print(1000 * optimized + sys.version_info.minor, "%d.%d.%d" % sys.version_info[:3])
'
names="python3 python3.14 python3.13 python3.12 python3.11"

choose() { # sets chosen to a Python that can create environments
    rank=-1
    for name in $names; do
        for path in $(IFS=:; for directory in $PATH; do [ -x "$directory/$name" ] && echo "$directory/$name"; done); do
            found=$("$path" -c "$check" 2>/dev/null) || continue
            if [ "${found%% *}" -gt "$rank" ]; then
                chosen=$path rank=${found%% *} version=${found#* }
            fi
        done
    done
    if [ -n "$chosen" ]; then
        optimized=$([ "$rank" -ge 1000 ] && echo "built with optimizations" || echo "built without optimizations")
        echo "using $chosen (Python $version, $optimized); to use another one: make PYTHON=/path/to/python3 .venv"
        return
    fi
    for name in $names; do # a Python whose venv module is missing
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            chosen=$name
            return
        fi
    done
}

[ -n "$chosen" ] || choose
[ -n "$chosen" ] || { echo "headrace needs Python 3.11 or newer on the path (or: make PYTHON=/path/to/python3)" >&2; exit 1; }
"$chosen" -m venv "$venv" && exit 0
rm -rf "$venv"
"$(dirname "$0")/system_packages.sh" python3-venv && "$chosen" -m venv "$venv" && exit 0
rm -rf "$venv"
echo "could not create $venv: install Python's venv module (Debian: apt-get install python3-venv)" >&2
exit 1
