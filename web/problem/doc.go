// Package problem is the one form of errors on the wire: RFC 9457 problems with
// a code, the id of the request, and for bad input where it stands and which
// rule it breaks.
//
// A problem never holds a rejected value. What stands in it comes from the
// contract (names of fields and parameters, positions in lists, rules) and from
// nowhere else; a property name that a client made up is not repeated either.
package problem
