// Package api is the REST API: operations of huma on a chi router.
//
// # The life of a request
//
//	authenticate ─▶ parameters ─▶ body ─▶ huma ─▶ operation
//	token, scope    text that     limit,   reads    one db.InOrg
//	                Postgres can  JSON,    and      transaction
//	                hold          text     checks
//
// An operation is a function of an organization's transaction and an input; what
// it returns is the body of the answer. The organization comes from the token
// and from nowhere else, and row security keeps the transaction inside it.
//
// # What commits together
//
// Everything an operation does, and for a creating POST with an Idempotency-Key
// the answer too: it is read back, or kept, in the transaction of the effect. So
// a request that is repeated gets the first one's answer, byte for byte, and a
// request that failed leaves nothing behind. Keys belong to a token and a route.
//
// # Errors
//
// Every error is a problem (package problem). Errors of the stores pass through
// one bridge, [Server.problem]; faults that huma finds are rewritten so that
// neither a value nor a property name that the client made up is repeated: a
// pointer ends at the last name that the contract knows.
package api
