package app_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// smallDisk is a file system for the data alone: when the write-ahead log finds no
// room Postgres ends, which is a restart and not this test.
func smallDisk(pg *postgres) {
	pg.Helper()
	disk := filepath.Join(pg.home, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil { //nolint:gosec // Postgres runs as another user
		pg.Fatal(err)
	}
	mountSmallDisk(pg.T, disk)
	pg.data = filepath.Join(disk, "cluster")
	pg.initdb = []string{"--waldir=" + filepath.Join(pg.home, "wal")}
	pg.own(disk)
}

// fill takes all room that is left on the disk and returns what frees it.
func fill(t *testing.T, disk string) (free func()) {
	t.Helper()
	name := filepath.Join(disk, "filler")
	file, err := os.Create(name) //nolint:gosec // of the test
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // nothing is buffered
	for block := make([]byte, 64<<10); len(block) >= 512; {
		if _, err := file.Write(block); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			block = block[:len(block)/2]
		}
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// shortOfDisk is a server whose database says that its disk is full from when full
// is called until free is. Where a
// disk can be mounted it really is; elsewhere triggers say what Postgres would.
func shortOfDisk(t *testing.T) (s *shop, full func() (free func())) {
	t.Helper()
	if mayMount(t) {
		pg := newPostgres(t, smallDisk)
		s = onPostgres(t, pg, resilient()...).open()
		return s, func() func() { return fill(t, filepath.Dir(pg.data)) }
	}
	in := onShared(t, resilient()...)
	s = in.open()
	return s, func() func() {
		in.exec(`create function disk_full() returns trigger language plpgsql as
			$$ begin raise exception 'could not extend file' using errcode = '53100'; end $$`)
		for _, table := range []string{"event_log", "outbox", "delivery", "receipt"} {
			in.exec("create trigger disk_full before insert on " + table + " execute function disk_full()")
		}
		in.exec(`create function disk_full_of_tables() returns event_trigger language plpgsql as
			$$ begin raise exception 'could not create file' using errcode = '53100'; end $$`)
		in.exec("create event trigger disk_full on ddl_command_start when tag in ('CREATE TABLE AS') execute function disk_full_of_tables()")
		return func() {
			in.exec("drop event trigger disk_full")
			in.exec("drop function disk_full() cascade")
		}
	}
}

func TestAFullDiskIsSaidAndLosesNothingAndTheServerGoesOnWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	s, full := shortOfDisk(t)
	gate := make(chan struct{})
	s.hook.holdAll(gate)
	s.emitAll(30)
	dbtest.Eventually(t, "deliveries are in hand", func() bool { return len(s.hook.all()) >= 30 })
	free := full()
	large := map[string]any{"event_type": "custom.order", "entity_kind": "order", "payload": map[string]any{"text": strings.Repeat("x", 1000)}}
	dbtest.Eventually(t, "an emission finds the disk full", func() bool {
		status, body := s.call("POST", "/v1/events", s.token, large)
		if status == http.StatusCreated {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.acked = append(s.acked, body["id"].(string))
			return false
		}
		if status != http.StatusServiceUnavailable || body["code"] != "disk_full" {
			t.Errorf("emission on a full disk = %d %v, want 503 disk_full", status, body)
		}
		return true
	})
	if status, after := s.post("/v1/events", large); status != http.StatusServiceUnavailable || after == "" {
		t.Errorf("emission on a full disk = %d with Retry-After %q, want 503 and a time", status, after)
	}
	s.wantUnready("database", "the database's disk is full")
	s.hook.holdAll(nil)
	close(gate) // the verdicts of what was in hand find the disk full too
	for range 50 {
		s.post("/v1/events", large)
	}
	if n := s.log.lines("the database's disk is full"); n == 0 || n > 20 {
		t.Errorf("%d log lines tell of the full disk, want some and not one for each failure", n)
	}

	free()
	s.wantReady()
	s.emitAll(10)
	s.wantAllSettledOnce()
}

// post makes a request and returns the status and Retry-After of the answer.
func (s *shop) post(path string, body any) (status int, retryAfter string) {
	s.Helper()
	res, err := http.DefaultClient.Do(s.request(http.MethodPost, path, s.token, body))
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // only the head is wanted
	return res.StatusCode, res.Header.Get("Retry-After")
}
