// Package bustest has what tests of the bus need: an in-memory [Log] whose calls
// can be made to fail, [Advance] for the false clock of a testing/synctest
// bubble, and [Conformance], the suite that every bus.Log must pass. The suite
// is what keeps the fake honest: the drain loop is tested on the fake, where
// time costs nothing, and the fake and Postgres pass the same suite. [Model] says
// the rules once more, in the plainest way: tests hold either log to it through
// random orders of all that can happen.
//
// The fake claims in shares, settles and extends; it knows nothing of relaying and
// lanes.
package bustest
