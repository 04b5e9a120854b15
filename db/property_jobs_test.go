package db_test

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
	"github.com/deskcomm/deskcomm/db"
)

const jobCommand bus.Type = "custom.c_requested"

const cancelReason = "not wanted"

// enqueue enqueues a job, for now or for later.
func (m *machine) enqueue(rt *rapid.T) {
	wait := time.Duration(rapid.IntRange(0, 4).Draw(rt, "half hours")) * 30 * time.Minute
	m.acts++
	ev := &modelEvent{
		org: rapid.SampledFrom(m.orgs).Draw(rt, "organization"), typ: jobCommand, at: m.acts, notBefore: m.now + wait,
		key: rapid.SampledFrom(orderKeys).Draw(rt, "key"),
	}
	m.must(rt, m.inOrg(ev.org, func(t *db.OrgTx) error {
		job := db.NewJob{Command: ev.typ, EntityKind: "thing", Metadata: ev.metadata()}
		if wait > 0 {
			job.NotBefore = time.Now().Add(wait)
		}
		made, err := t.Enqueue(m.Context(), job)
		ev.id = made.ID
		return err
	}))
	m.log, m.jobs = append(m.log, ev), append(m.jobs, ev)
	if wait > 0 {
		m.early = append(m.early, ev)
	} else {
		m.outbox = append(m.outbox, ev)
	}
}

// startJobs puts the jobs whose time has come into the outbox, as the relay does
// first.
func (m *machine) startJobs(limit int) {
	slices.SortStableFunc(m.early, func(a, b *modelEvent) int { return int(a.notBefore - b.notBefore) })
	for n := 0; n < limit && len(m.early) > 0 && m.early[0].notBefore <= m.now; n++ {
		ev := m.early[0]
		m.early = m.early[1:]
		m.intoOutbox(ev, m.now-ev.notBefore)
	}
}

func (m *machine) intoOutbox(ev *modelEvent, late time.Duration) {
	m.acts++
	ev.at, ev.late = m.acts, late
	m.outbox = append(m.outbox, ev)
}

// cancel gives a job up, and fails when that is refused or accepted against the
// rules.
func (m *machine) cancel(rt *rapid.T) {
	ev, ok := choice(rt, "job", m.jobs)
	if !ok {
		return
	}
	relayed := slices.Contains(m.places, ev.id)
	may := !relayed && !ev.cancelled || relayed && m.mayCancel(ev.id)
	err := m.inOrg(ev.org, func(t *db.OrgTx) error { return t.CancelJob(m.Context(), ev.id, cancelReason) })
	if !may {
		if !errors.Is(err, bus.ErrConflict) {
			rt.Fatalf("the end of a job that is in hand or has ended = %v, want a refusal", err)
		}
		return
	}
	m.must(rt, err)
	ev.cancelled = true
	if relayed {
		m.model.Cancelled(ev.id, cancelReason)
	}
	if i := slices.Index(m.early, ev); i >= 0 {
		m.early = slices.Delete(m.early, i, i+1)
		m.intoOutbox(ev, 0)
	}
}

// mayCancel reports whether something of a job waits with its consumers and none
// of them has it in hand.
func (m *machine) mayCancel(id uuid.UUID) bool {
	unfinished := slices.DeleteFunc(m.model.Rows(), func(r *bustest.Row) bool { return r.Event != id || r.Destination != uuid.Nil || !r.Unfinished() })
	inHand := func(r *bustest.Row) bool { return r.Status == "processing" || r.Begun }
	return len(unfinished) > 0 && !slices.ContainsFunc(unfinished, inHand)
}
