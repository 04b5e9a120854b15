// Package localpg keeps a private Postgres running for one data directory, so
// that a bare binary needs no database server to be set up by hand.
//
// # What it promises
//
// A data directory has at most one cluster and at most one postmaster. The
// server listens on a Unix socket only, in a folder that nobody else may enter.
// It ends with the process that owns it, also when that process is killed with
// SIGKILL. Whatever is killed, and whenever, the next Open finds the rows.
//
// # Who owns the server
//
// An exclusive flock on <data>/postgres.lock is the ownership. The kernel frees
// it when its holder dies, so it cannot go stale.
//
//	Open ── lock free ──▶ owner: init when empty, stop a leftover, start, wait
//	  │                     │  ▲
//	  │                     │  └── Postgres ended: Run starts it again (backoff)
//	  │                     └───── Close: SIGINT, after 20 s SIGQUIT, free the lock
//	  └── lock held ──▶ adopter: connect through the owner's socket, never stop it
//	                        └───── lock free again: Run takes over
//
// An owner that was killed leaves a Postgres that is still shutting down. The
// kernel frees the lock a moment before it tells Postgres, so the next owner may
// even see it serving: it asks it to end, waits, and starts its own.
//
// # Where things are
//
//	<data>/postgres.lock       who owns the server
//	<data>/postgres.password   of the role deskcomm, 0600
//	<data>/postgres.log        what Postgres says; postgres.log.1 is the older part
//	<data>/postgres.location   only when the cluster is elsewhere: the path of <home>
//	<home>/<major>/            the cluster; <home> is <data>/postgres
//	<home>/run/                the socket, unless its path would be too long
//	<home>/.init-*/            a cluster being made; renamed when complete
//
// Postgres refuses to run as root. Under root it runs as user postgres, else as
// nobody, and that user must be able to reach its files: when a parent of the
// data directory is closed to it (root's home is), <home> is
// /var/lib/deskcomm/<hash of the data directory> and a warning says so.
//
// # What it does not do
//
// It opens no TCP port, downloads nothing, and does not upgrade a cluster to
// another major version.
package localpg
