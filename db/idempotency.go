package db

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// Answer is the stored answer to an idempotent request.
type Answer struct {
	Status int
	Body   []byte
}

// ErrInFlight says that a request with the same idempotency key is under way.
var ErrInFlight = fmt.Errorf("a request with the same Idempotency-Key is under way: %w", bus.ErrConflict)

func checkIdempotencyKey(key string) error {
	if key == "" || len(key) > 255 {
		return bus.Invalid("Idempotency-Key", "must have 1 to 255 characters")
	}
	return nil
}

func errOtherRequest() error { return bus.Invalid("Idempotency-Key", "was used with another request") }

// idempotencyPlace names what a key stands for: the lock on it and where its answer
// may be opened.
func idempotencyPlace(org uuid.UUID, endpoint, key string) string {
	return "idempotency:" + org.String() + ":" + endpoint + ":" + key
}

func (o *Once) place(org uuid.UUID) string { return idempotencyPlace(org, o.Endpoint, o.Key) }

const lockIdempotencySQL = `select pg_try_advisory_xact_lock(hashtextextended(@place, 0))`

const recallAnswerSQL = `
	select request_hash, status_code, response
	  from idempotency_keys
	 where organization_id = @org_id and endpoint = @endpoint and key = @key and expires_at > clock_timestamp()`

// Recall returns the answer that a request with this key got before, nil when it
// is the first. Until t ends no other request with the key gets past Recall: it
// is refused with ErrInFlight. The same key with another request is a
// *bus.FieldError.
func (t *OrgTx) Recall(ctx context.Context, endpoint, key string, requestHash []byte) (*Answer, error) {
	if err := checkIdempotencyKey(key); err != nil {
		return nil, err
	}
	var locked bool
	place := idempotencyPlace(t.org, endpoint, key)
	if err := t.tx.QueryRow(ctx, lockIdempotencySQL, named{"place": place}).Scan(&locked); err != nil {
		return nil, wrap("lock idempotency key", err)
	}
	if !locked {
		return nil, ErrInFlight
	}
	var status int
	var hash, sealed []byte
	err := t.tx.QueryRow(ctx, recallAnswerSQL, named{"org_id": t.org, "endpoint": endpoint, "key": key}).Scan(&hash, &status, &sealed)
	if err = translate(err); errors.Is(err, bus.ErrNotFound) {
		return nil, nil //nolint:nilnil // no earlier answer is the common case, not a failure
	}
	if err != nil {
		return nil, wrap("recall answer", err)
	}
	if !bytes.Equal(hash, requestHash) {
		return nil, errOtherRequest()
	}
	body, err := t.box.open(sealed, place)
	if err != nil {
		return nil, err
	}
	return &Answer{Status: status, Body: body}, nil
}

const rememberAnswerSQL = `
	insert into idempotency_keys (organization_id, endpoint, key, request_hash, status_code, response)
	values (@org_id, @endpoint, @key, @request_hash, @status_code, @response)`

const forgetAnswerSQL = `
	delete from idempotency_keys where organization_id = @org_id and endpoint = @endpoint and key = @key`

// Remember keeps the answer to a request in the transaction of its effect.
func (t *OrgTx) Remember(ctx context.Context, endpoint, key string, requestHash []byte, a Answer) error {
	place := idempotencyPlace(t.org, endpoint, key)
	sealed, err := t.box.seal(a.Body, place)
	if err != nil {
		return err
	}
	// An expired row may be left; Recall has seen that none is valid.
	if _, err := t.tx.Exec(ctx, forgetAnswerSQL, named{"org_id": t.org, "endpoint": endpoint, "key": key}); err != nil {
		return wrap("forget answer", err)
	}
	_, err = t.tx.Exec(ctx, rememberAnswerSQL, named{
		"org_id": t.org, "endpoint": endpoint, "key": key, "request_hash": requestHash, "status_code": a.Status, "response": sealed,
	})
	return wrap("remember answer", err)
}
