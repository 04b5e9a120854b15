// Package db holds the program's SQL: the schema, the bus on Postgres, and one
// file of statements for each aggregate. Only the making of the private database
// itself is elsewhere, in app/localpg.
//
// # Who runs a statement
//
// The owner of the tables runs the bus, the inbound receivers and the jobs. The
// bus works on keys that carry the organization, the jobs on all of them; every
// other statement of the owner names it. Everything on behalf of an
// organization goes through [DB.InOrg]: one transaction under the role
// deskcomm_api, which sees the rows of that organization and no others, however
// a statement is written.
//
// # What commits together
//
// A domain change, its event and the event's outbox row are one transaction, and
// so are a verdict over deliveries and its receipt, and a person's act and its
// audit row. Nothing outside Postgres happens inside a transaction; waking the
// relay is an in-memory nudge after the commit.
//
// # Time
//
// The database's clock makes event ids, due times and the ends of leases. No
// statement takes an instant of the host's clock for these.
package db
