#!/usr/bin/env bash
# One measurement of deskcomm, on a database that it makes and drops: deskcomm.sh SCENARIO
set -euo pipefail
cd "$(dirname "$0")"; . ./env.sh
unset "${!DESKCOMM_@}"
DATABASE_URL="postgres://$PGUSER@$PGHOST:$PGPORT/postgres?sslmode=disable" \
    "$PEERS_BUILD/deskcomm" bench run --scenario "$1" --json | tee -a "$PEERS_OUT"
