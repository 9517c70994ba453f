#!/bin/sh
# HAProxy as Ray Serve starts it, with two lines of Ray's template changed that have no setting.
# Its stats and metrics pages listen on 127.0.0.1, not on every address. It does not splice: with
# splicing it misses, in a third of the cases, that a client left before its answer began, and the
# engine works on for nobody.
previous=
for argument in "$@"; do
    if [ "$previous" = -f ] && [ -w "$argument" ]; then
        sed -i -E '/^(frontend prometheus|listen stats)$/,/bind/ s/bind \*?:/bind 127.0.0.1:/
            /^ *option splice-/d' "$argument"
    fi
    previous=$argument
done
exec "${RAYSCEND_HAPROXY:-haproxy}" "$@"
