#!/usr/bin/env bash
# Install what tests use beside Python packages, where it is missing: Debian's Prometheus.
# For CI, as root. On your own machine a test that lacks it is skipped and says so.
set -euo pipefail

command -v prometheus >/dev/null && exit
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus
