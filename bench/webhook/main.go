// webhook is the HTTP part of a webhook dispatcher and nothing else: POSTs of
// small JSON bodies, each signed with HMAC-SHA256, over a fixed number of
// keep-alive connections to a receiver that answers 200 at once.
//
//	webhook -serve 127.0.0.1:18099 &  webhook -to 127.0.0.1:18099
//
// Two clients: net/http (what a Go product would use) and a bare socket one
// (writes the request bytes, reads the answer: the floor of HTTP/1.1 here).
// Two receivers: net/http and, with -bare, one that answers from a loop.
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/deskcomm/deskcomm/bench/internal/bench"
	"github.com/deskcomm/deskcomm/bench/internal/hook"
)

var (
	serve = flag.String("serve", "", "listen address: be the receiver")
	bare  = flag.Bool("bare", false, "with -serve: the socket-loop receiver")
	to    = flag.String("to", "", "receiver address: be the dispatcher")
	label = flag.String("label", "net/http receiver", "receiver's name in the results")
	n     = flag.Int("n", 10_000, "requests")
	conns = flag.Int("conns", 64, "connections")
	size  = flag.Int("payload", 500, "bytes of JSON")
	delay = flag.Duration("delay", 0, "with -serve: think time of the receiver")
)

func main() {
	flag.Parse()
	if *serve != "" {
		if *bare {
			serveBare()
			return
		}
		bench.Must(http.ListenAndServe(*serve, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if *delay > 0 {
				time.Sleep(*delay)
			}
		})))
		return
	}
	for _, mode := range []string{"net/http client", "bare socket client"} {
		var send func(i int) func(id int64, body []byte) error
		if mode == "net/http client" {
			cl := hook.New(*to, *conns)
			send = func(int) func(int64, []byte) error {
				return func(id int64, body []byte) error { return cl.Post(context.Background(), id, body) }
			}
		} else {
			send = func(int) func(int64, []byte) error {
				c, err := net.Dial("tcp", *to)
				bench.Must(err)
				rd := bufio.NewReader(c)
				var buf []byte
				return func(id int64, body []byte) error {
					ts := strconv.FormatInt(time.Now().Unix(), 10)
					buf = fmt.Appendf(buf[:0], "POST /hook HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nWebhook-Id: %d\r\nWebhook-Timestamp: %s\r\nWebhook-Signature: %s\r\n\r\n", *to, len(body), id, ts, hook.Sign(body, ts))
					buf = append(buf, body...)
					if _, err := c.Write(buf); err != nil {
						return err
					}
					l, err := rd.ReadSlice('\n')
					if err != nil {
						return err
					}
					if !bytes.Contains(l, []byte(" 200 ")) {
						return fmt.Errorf("%s", l)
					}
					length := 0
					for {
						l, err := rd.ReadSlice('\n')
						if err != nil {
							return err
						}
						if len(l) <= 2 {
							break
						}
						if v, ok := bytes.CutPrefix(l, []byte("Content-Length: ")); ok {
							length, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
						}
					}
					_, err = rd.Discard(length)
					return err
				}
			}
		}
		// bodies are made beforehand, as rows from a database would be
		bodies := make([][]byte, 1000)
		for i := range bodies {
			bodies[i] = bench.NewEvent(int64(i), *size).JSON()
		}
		senders := make([]func(int64, []byte) error, *conns)
		for i := range senders {
			senders[i] = send(i)
		}
		bench.Parallel(*conns, func(i int) { bench.Must(senders[i](0, bodies[0])) }) // open the connections
		var next atomic.Int64
		var lat bench.Latencies
		t0 := time.Now()
		bench.Parallel(*conns, func(i int) {
			for {
				k := next.Add(1) - 1
				if k >= int64(*n) {
					return
				}
				a := time.Now()
				bench.Must(senders[i](k, bodies[k%1000]))
				lat.Add(time.Since(a))
			}
		})
		el := time.Since(t0)
		r := bench.Result{Peer: "http", Scenario: "webhook", Sync: "-", Params: fmt.Sprintf("%s, %s, conns=%d payload=%d n=%d", mode, *label, *conns, *size, *n)}
		r.Metric, r.Value = "posts_per_s", float64(*n)/el.Seconds()
		bench.Emit(r)
		r.Metric, r.Value = "p99_ms", lat.P(.99)
		bench.Emit(r)
	}
}

func serveBare() {
	ln, err := net.Listen("tcp", *serve)
	bench.Must(err)
	for {
		c, err := ln.Accept()
		bench.Must(err)
		go func() {
			defer c.Close()
			rd := bufio.NewReader(c)
			answer := []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			for {
				length := 0
				for {
					l, err := rd.ReadSlice('\n')
					if err != nil {
						return
					}
					if len(l) <= 2 {
						break
					}
					if len(l) > 15 && bytes.EqualFold(l[:15], []byte("content-length:")) {
						length, _ = strconv.Atoi(string(bytes.TrimSpace(l[15:])))
					}
				}
				if _, err := rd.Discard(length); err != nil {
					return
				}
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
		}()
	}
}
