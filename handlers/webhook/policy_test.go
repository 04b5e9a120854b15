package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/deskcomm/deskcomm/handlers/outhttp"
)

func TestDecideByStatus(t *testing.T) {
	t.Parallel()
	for outcome, statuses := range map[Outcome][]int{
		OutcomeDone:  {200, 201, 202, 204, 206, 299},
		OutcomeDead:  {400, 410, 413, 415, 422},
		OutcomeRetry: {300, 301, 302, 303, 304, 307, 308, 399, 401, 402, 403, 404, 405, 406, 407, 408, 409, 418, 425, 429, 451, 499, 500, 502, 503, 504, 599},
	} {
		for _, status := range statuses {
			got := Decide(outhttp.Response{Status: status}, nil, 1, time.Now())
			code := fmt.Sprintf("http_%d", status)
			switch {
			case outcome == OutcomeDone:
				code = "delivered"
			case status < 400:
				code = "redirect_not_followed"
			}
			if got.Outcome != outcome || got.Code != code || got.RetryAfter != 0 || got.Uncertain {
				t.Errorf("Decide(%d) = %+v, want %q, %q and no wait", status, got, outcome, code)
			}
			if !strings.Contains(got.Message, strconv.Itoa(status)) {
				t.Errorf("Decide(%d): message %q does not name the status", status, got.Message)
			}
		}
	}
}

func TestRefusedCredentialsAreDeadAfterTheThirdAttempt(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 407} {
		for attempt, want := range map[int]Outcome{1: OutcomeRetry, 2: OutcomeRetry, 3: OutcomeDead, 4: OutcomeDead} {
			if got := Decide(outhttp.Response{Status: status}, nil, attempt, time.Now()).Outcome; got != want {
				t.Errorf("Decide(%d, attempt %d) = %q, want %q", status, attempt, got, want)
			}
		}
	}
}

func TestOnlyABusyReceiverSetsTheWait(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		status int
		values []string
		want   time.Duration
	}{
		"429 in seconds":       {429, []string{"120"}, 2 * time.Minute},
		"503 as a date":        {503, []string{"Thu, 01 Jan 2026 12:05:00 GMT"}, 5 * time.Minute},
		"503 in the past":      {503, []string{"Thu, 01 Jan 2026 11:00:00 GMT"}, 0},
		"429 with two headers": {429, []string{"60", "120"}, 2 * time.Minute},
		"429 with garbage":     {429, []string{"soon"}, 0},
		"429 for a year":       {429, []string{"31536000"}, 24 * time.Hour},
		"500 does not count":   {500, []string{"120"}, 0},
		"301 does not count":   {301, []string{"120"}, 0},
		"200 does not count":   {200, []string{"120"}, 0},
	} {
		res := outhttp.Response{Status: tt.status, Header: http.Header{"Retry-After": tt.values}}
		if got := Decide(res, nil, 1, now).RetryAfter; got != tt.want {
			t.Errorf("%s: wait = %v, want %v", name, got, tt.want)
		}
	}
}

func TestDecideByCause(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		want Decision
	}{
		"blocked": {
			&outhttp.Error{Cause: outhttp.CauseBlockedAddress, Phase: outhttp.PhaseDNS},
			Decision{Outcome: OutcomeDead, Code: "blocked_address"},
		},
		"invalid": {
			&outhttp.Error{Cause: outhttp.CauseInvalidRequest, Phase: outhttp.PhaseWait},
			Decision{Outcome: OutcomeDead, Code: "invalid_request"},
		},
		"no name": {
			&outhttp.Error{Cause: outhttp.CauseDNS, Phase: outhttp.PhaseDNS},
			Decision{Outcome: OutcomeRetry, Code: "dns_error"},
		},
		"reset": {
			fmt.Errorf("deliver: %w", &outhttp.Error{Cause: outhttp.CauseConnectionReset, Phase: outhttp.PhaseHeaders, Uncertain: true}),
			Decision{Outcome: OutcomeRetry, Code: "connection_reset", Uncertain: true},
		},
		"timeout": {
			&outhttp.Error{Cause: outhttp.CauseTimeout, Phase: outhttp.PhaseTLS},
			Decision{Outcome: OutcomeRetry, Code: "timeout"},
		},
		"unknown": {errors.New("zq"), Decision{Outcome: OutcomeRetry, Code: "internal_error", Uncertain: true}},
	} {
		got := Decide(outhttp.Response{}, tt.err, 1, time.Now())
		if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Decision{}, "Message")); diff != "" {
			t.Errorf("%s: Decide (-want +got):\n%s", name, diff)
		}
		if got.Message == "" || strings.Contains(got.Message, "zq") {
			t.Errorf("%s: message = %q, want a text of our own", name, got.Message)
		}
	}
}
