// Package outhttp makes HTTP requests to places that tenants choose.
//
// [Client.Do] is one attempt: at most one request leaves, and it ends within one
// budget of wall-clock time over name resolution, connection, TLS, writing, headers
// and body. The phases follow each other in that order:
//
//	wait → dns → connect → tls → write → headers → body
//
// # What is promised
//
//   - Nothing is followed, repeated or routed elsewhere: no redirects, no proxy from
//     the environment, no resend on another connection. A redirect comes back as the
//     response it is. (net/http may send a GET or HEAD without a body again when a
//     reused connection turns out dead; a request with a body or another method never.)
//   - The address is checked when the connection is made. The name is resolved here
//     and refused whole when any of its addresses is refused; at most four are
//     tried; the dialer then checks the address it really connects to, with our table
//     and with a second, independent one. TLS still verifies the name.
//   - A response counts when its headers are complete and its status lies in 200–599.
//     The body is a courtesy for the log: 64 KiB and five seconds at most, not
//     decompressed. Trouble in it sets [Response.BodyNote] and changes nothing else.
//   - Errors are [*Error]: a cause, the phase reached and whether the receiver may
//     have got the request. Their text holds no URL, no address and no header.
//
// # What it does not do
//
// It does not sign, retry, count or log, and it does not judge a status: a complete
// 500 is a response and not an error.
package outhttp
