package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/deskcomm/deskcomm/handlers/webhook"
)

type webhooksCmd struct {
	Listen webhooksListenCmd `cmd:"" help:"Be a webhook receiver: print and verify what arrives."`
}

type webhooksListenCmd struct {
	Addr   string `default:"127.0.0.1:9099" help:"Address to listen on."`
	Secret string `help:"Secret of the subscription; signatures are not checked without it."`
	Status int    `default:"200" help:"Status to answer with, such as 500 to see what a failing receiver leads to."`
}

// maxListenBody is how much of a request the receiver reads.
const maxListenBody = 10 << 20

// Run answers and prints requests until ctx ends.
func (l webhooksListenCmd) Run(ctx context.Context, con console) error {
	if l.Status < 200 || l.Status > 599 {
		return errors.New("--status must be between 200 and 599")
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.Addr)
	if err != nil {
		return fmt.Errorf("--addr: %w", err)
	}
	srv := &http.Server{
		ReadTimeout: 30 * time.Second,
		Handler:     http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.take(con.out, w, r) }),
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() }) //nolint:errcheck // the process ends
	defer stop()
	if _, err := fmt.Fprintf(con.out, "listening at http://%s, answering %d\n", listener.Addr(), l.Status); err != nil {
		return err
	}
	if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (l webhooksListenCmd) take(out io.Writer, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxListenBody))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	signature := "not checked"
	if l.Secret != "" {
		signature = "valid"
		if err := webhook.Verify(l.Secret, r.Header, body, time.Now()); err != nil {
			signature = err.Error()
		}
	}
	h := r.Header
	fmt.Fprintf(out, "%s %s attempt %s delivery %s signature %s\n%s\n", //nolint:errcheck // the terminal is gone then
		time.Now().Format(time.TimeOnly), h.Get(webhook.HeaderEvent), h.Get(webhook.HeaderAttempt), h.Get(webhook.HeaderDelivery), signature, body)
	w.WriteHeader(l.Status)
}
