package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/urlpolicy"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/handlers"
)

// webhook measures a backlog that is POSTed to a receiver of the bench's own, with
// the very handler that the server has.
func (r *run) webhook(ctx context.Context) error {
	if err := r.reset(ctx, 0); err != nil {
		return err
	}
	url, stop, err := receiver(ctx)
	if err != nil {
		return err
	}
	defer stop()
	policy, err := urlpolicy.New([]string{"127.0.0.1"})
	if err != nil {
		return err
	}
	list := handlers.All(handlers.Deps{DB: r.store, Policy: policy, Version: "bench"})
	registered := make([]bus.Consumer, len(list))
	for i, h := range list {
		registered[i] = h.Consumer()
	}
	if err := r.store.RegisterConsumers(ctx, registered); err != nil {
		return err
	}
	if err := r.exec(ctx, "delete from webhook_subscriptions"); err != nil {
		return err
	}
	for _, org := range r.orgs {
		err := r.store.InOrg(ctx, org, actor(), func(t *db.OrgTx) error {
			_, err := t.CreateSubscription(ctx, db.NewSubscription{URL: url, EventTypes: []string{string(typ)}, Secret: "a secret that only the bench has"})
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := r.fill(ctx, r.FanOut); err != nil {
		return err
	}
	took, err := r.working(ctx, list, r.FanOut, waitOnly)
	if err != nil {
		return err
	}
	params := fmt.Sprintf("own receiver, organizations=%d payload=%d", r.Organizations, r.Payload)
	return r.report(params, "posts_per_s", float64(r.FanOut)/took.Seconds())
}

// receiver answers every request at once with 200.
func receiver(ctx context.Context) (url string, stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listen: %w", err)
	}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: 10 * time.Second,
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			_ = srv.Close() // what is sent to it fails then, and says so
		}
	})
	return "http://" + listener.Addr().String() + "/hook", func() {
		_ = srv.Close() // nothing is under way any more
		serving.Wait()
	}, nil
}
