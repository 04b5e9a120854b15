package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/waha"
)

// ingest applies one update of a channel's gateway in a transaction.
type ingest struct {
	tx        pgx.Tx
	org       uuid.UUID
	channel   uuid.UUID
	envelope  waha.Envelope
	requestID string
	update    waha.Update
	emitted   bool
}

// readAndApply reads the envelope and applies what it says within a savepoint. A
// panic on the way is an error like any other: the archive must outlive it.
func (in *ingest) readAndApply(ctx context.Context, tx pgx.Tx) (result InboundResult, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	result, err = in.read()
	if err != nil || result.Status != "" {
		return result, err
	}
	err = pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) (err error) {
		in.tx = inner
		result, err = in.apply(ctx)
		return err
	})
	return result, err
}

// read turns the envelope into an update. A result is returned when there is
// nothing to apply.
func (in *ingest) read() (InboundResult, error) {
	update, err := waha.Normalise(in.envelope)
	if contract, ok := errors.AsType[*waha.ContractError](err); ok {
		return InboundResult{Status: InboundMalformed, Reason: contract.Error(), Fields: contract.Fields}, nil
	}
	if err != nil {
		return InboundResult{}, err
	}
	in.update = update
	ignored, ok := update.(waha.Ignored)
	if ok && ignored.Reason != waha.ReasonChatIDNotRecognized {
		return InboundResult{Status: InboundIgnored, Reason: string(ignored.Reason)}, nil
	}
	return InboundResult{}, nil
}

// apply changes what the update says and emits what follows from it.
func (in *ingest) apply(ctx context.Context) (InboundResult, error) {
	var reason string
	var err error
	switch u := in.update.(type) {
	case waha.Message:
		reason, err = in.message(ctx, u)
	case waha.Ack:
		reason, err = in.ack(ctx, u)
	case waha.Edit:
		reason, err = in.edit(ctx, u)
	case waha.Revoke:
		reason, err = in.revoke(ctx, u)
	case waha.Reaction:
		reason, err = in.reaction(ctx, u)
	case waha.SessionStatus:
		reason, err = in.sessionStatus(ctx, u)
	case waha.Ignored:
		return in.unrecognised(ctx, u)
	}
	if err != nil {
		return InboundResult{}, err
	}
	if ignoredReasons()[reason] {
		return InboundResult{Status: InboundIgnored, Reason: reason}, nil
	}
	return InboundResult{Status: InboundProcessed, Reason: reason}, nil
}

// What an update that was applied came to.
const (
	reasonMessageCreated   = "message_created"
	reasonMessageUpdated   = "message_updated"
	reasonReactionStored   = "reaction_stored"
	reasonSessionUpdated   = "session_updated"
	reasonParked           = "parked" // its message has not arrived
	reasonDuplicateMessage = "duplicate_message"
	reasonNothingNew       = "nothing_new"
)

func ignoredReasons() map[string]bool {
	return map[string]bool{reasonDuplicateMessage: true, reasonNothingNew: true}
}

// unrecognised leaves a trace that can be counted of a message whose address
// nobody can read.
func (in *ingest) unrecognised(ctx context.Context, u waha.Ignored) (InboundResult, error) {
	err := in.emit(ctx, bus.WhatsAppChatIDNotRecognized, "channel_session", in.channel, map[string]any{
		"suffix": u.Suffix, "direction": u.Direction,
	})
	return InboundResult{Status: InboundIgnored, Reason: string(u.Reason)}, err
}

// emit appends an event about an entity in the transaction of the change. What
// happens in a conversation stays in order with the rest of it.
func (in *ingest) emit(ctx context.Context, typ bus.Type, kind string, id uuid.UUID, payload map[string]any) error {
	body, err := json.Marshal(payload)
	if err != nil {
		return wrap("emit "+string(typ), err)
	}
	metadata := map[string]json.RawMessage{"source": json.RawMessage(`"waha"`)}
	if conversation, ok := payload["conversation_id"].(uuid.UUID); ok {
		metadata["order_key"] = json.RawMessage(`"conversation:` + conversation.String() + `"`) // not each message by itself
	}
	_, err = emit(ctx, in.tx, in.org, Actor{Kind: ActorSystem, RequestID: in.requestID}, NewEvent{
		Type: typ, EntityKind: kind, EntityID: uuid.NullUUID{UUID: id, Valid: true}, Payload: body,
		Metadata: metadata,
	})
	in.emitted = true
	return err
}
