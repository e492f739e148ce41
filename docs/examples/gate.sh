#!/usr/bin/env bash
# Fail a build when a model outgrows its budget:  gate.sh SOURCE MAX_PARAMS MAX_MACS
set -euo pipefail
[[ $# == 3 ]] || { echo "usage: gate.sh SOURCE MAX_PARAMS MAX_MACS" >&2; exit 2; }
exec leanify profile "$1" --no-measure --max-params "$2" --max-macs "$3"
