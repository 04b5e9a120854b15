// Package db is the only home of SQL: the schema, the bus on Postgres, and one
// file of statements for each aggregate.
//
// # Who runs a statement
//
// The owner of the tables runs the bus, the inbound receivers and the jobs; its
// statements name the organization themselves. Everything on behalf of an
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
