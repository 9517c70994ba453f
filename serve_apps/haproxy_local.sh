#!/bin/sh
# HAProxy as Ray Serve starts it, with its stats and metrics pages on 127.0.0.1 only: Ray's
# template binds them on every address and has no setting for it.
previous=
for argument in "$@"; do
    if [ "$previous" = -f ] && [ -w "$argument" ]; then
        sed -i -E '/^(frontend prometheus|listen stats)$/,/bind/ s/bind \*?:/bind 127.0.0.1:/' "$argument"
    fi
    previous=$argument
done
exec "${RAYSCEND_HAPROXY:-haproxy}" "$@"
