package waha

import (
	"strings"
	"time"
)

// SessionState is the state of a WAHA session.
type SessionState string

// The seven states. WORKING → STARTING → WORKING every half hour is normal;
// the caller waits before it calls a session down.
const (
	SessionStopped                     SessionState = "STOPPED"
	SessionStarting                    SessionState = "STARTING"
	SessionScanQRCode                  SessionState = "SCAN_QR_CODE"
	SessionPasskeyRequired             SessionState = "PASSKEY_REQUIRED"
	SessionPasskeyConfirmationRequired SessionState = "PASSKEY_CONFIRMATION_REQUIRED"
	SessionWorking                     SessionState = "WORKING"
	SessionFailed                      SessionState = "FAILED"
)

// SessionStatus says that a session is in a state. The same state may be told
// again (each QR code is one event) and states may arrive out of order, so At
// decides. The QR code and the pairing challenge are not carried.
type SessionStatus struct {
	Session string
	State   SessionState
	Me      Account // empty until paired
	At      time.Time
}

// Kind returns KindSessionStatus.
func (SessionStatus) Kind() Kind { return KindSessionStatus }
func (SessionStatus) sealed()    {}

// sessionStatus reads session.status. States added by later versions are
// ignored: the session sync cron has the last word anyway.
func (r *reading) sessionStatus() Update {
	state := SessionState(strings.ToUpper(r.text("status")))
	switch state {
	case "":
		if !r.p.has("status") || r.p["status"] == "" {
			r.fault("/status", RuleRequired)
		}
		return nil
	case SessionStopped, SessionStarting, SessionScanQRCode, SessionPasskeyRequired,
		SessionPasskeyConfirmationRequired, SessionWorking, SessionFailed:
	default:
		return Ignored{Reason: ReasonUnknownStatus}
	}
	s := SessionStatus{Session: r.env.Session, State: state, Me: r.env.Me}
	if s.Session == "" {
		s.Session = r.p.text("name")
	}
	if s.Me == (Account{}) {
		s.Me = accountOf(r.p.object("me"))
	}
	var since any
	for _, past := range r.p.objects("statuses") {
		if SessionState(strings.ToUpper(past.text("status"))) == state {
			since = past["timestamp"]
		}
	}
	s.At = r.env.at(since)
	return s
}
