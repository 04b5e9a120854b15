// Package web is everything that the server answers by HTTP: the order of
// middleware and routes stands in [New], the REST API in package api, and the
// form of errors in package problem.
//
// Probes need no token: /livez says that the process answers, /readyz (also
// /healthz) that requests and events can be handled now. Both say which check
// failed and never why; the log does.
package web
