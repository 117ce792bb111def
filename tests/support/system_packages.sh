#!/bin/sh
# Installs Debian packages if it runs as root and apt-get is available; otherwise it prints what to install.
# Tests that need a missing package are skipped with a reason. Usage: system_packages.sh PACKAGE...
missing=""
for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing Debian packages:$missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 && exit 0
    echo "could not install$missing: tests that need them will be skipped" >&2
else
    command -v postgres >/dev/null 2>&1 || [ -n "$(ls /usr/lib/postgresql/*/bin/postgres 2>/dev/null)" ] || need="postgresql"
    command -v kcat >/dev/null 2>&1 || need="${need:-} kcat"
    command -v ip >/dev/null 2>&1 || need="${need:-} iproute2"
    case "$missing" in *mariadb*) command -v mariadbd >/dev/null 2>&1 || need="${need:-} mariadb-server" ;; esac
    [ -n "${need:-}" ] && echo "to run all tests, install: $need (the tests that need them will be skipped)" >&2
fi
exit 0
