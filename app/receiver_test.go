package app_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
)

// delivered is one request that a webhook receiver got.
type delivered struct {
	header http.Header
	body   []byte
}

// receiver is somebody's webhook endpoint.
type receiver struct {
	*httptest.Server
	status atomic.Int32  // what it answers
	hold   chan struct{} // when not nil, requests wait until it is closed

	mu  sync.Mutex
	got []delivered
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.status.Store(http.StatusOK)
	r.Server = httptest.NewServer(http.HandlerFunc(r.take))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) take(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.got = append(r.got, delivered{header: req.Header.Clone(), body: body})
	hold := r.hold
	r.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-req.Context().Done():
			return
		}
	}
	w.WriteHeader(int(r.status.Load()))
}

// holdAll makes requests wait from now on, or lets them go.
func (r *receiver) holdAll(hold chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = hold
}

func (r *receiver) all() []delivered {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]delivered{}, r.got...)
}
