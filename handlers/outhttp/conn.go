package outhttp

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// brokenPipeGrace bounds the wait for a response that explains a failed write.
const brokenPipeGrace = time.Second

// conn is a connection that counts the writes begun on it, which tells a request
// that surely did not leave from one that may have.
//
// It also holds back the news of a failed write. A receiver that answers 413 and
// closes makes the write fail while its answer still waits to be read, and net/http
// would report whichever it notices first. Reading goes on meanwhile; the wait ends
// when the connection is closed, which a response or a failed read brings about.
type conn struct {
	net.Conn
	writes atomic.Int64
	closed chan struct{}
	once   sync.Once
}

func newConn(c net.Conn) *conn { return &conn{Conn: c, closed: make(chan struct{})} }

func (c *conn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	n, err := c.Conn.Write(b)
	if err != nil {
		grace := time.NewTimer(brokenPipeGrace)
		defer grace.Stop()
		select {
		case <-c.closed:
		case <-grace.C:
		}
	}
	return n, err
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
