#!/bin/sh
# Makes the shared library of the static one, with versions of its symbols.
#
#   link-shared.sh libbmi.a libbmi.so.0
set -e
here=$(dirname "$0")
symbols=$(sed -n 's/^ *\([A-Za-z_0-9]*\);$/-Wl,-u,\1/p' "$here/bmi.map")
# shellcheck disable=SC2086
exec "${CC:-cc}" -shared -o "$2" -Wl,-soname,libbmi.so.0 -Wl,--version-script="$here/bmi.map" \
    -Wl,--gc-sections -Wl,-z,defs -Wl,-z,now $symbols "$1" -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
