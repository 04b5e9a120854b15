package waha

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite testdata/samples.golden")

// TestSamplesGiveTheGoldenUpdates reads every recorded body. Each line of the
// golden file was compared with the body it comes from.
func TestSamplesGiveTheGoldenUpdates(t *testing.T) {
	t.Parallel()
	const golden = "testdata/samples.golden"
	files, err := filepath.Glob("testdata/samples/*.json")
	if err != nil || len(files) != 90 {
		t.Fatalf("samples = %d files, %v; want 90", len(files), err)
	}
	var got strings.Builder
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		fmt.Fprintf(&got, "%s | %s\n", name, row(normalised(t, sample(t, name))))
	}
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
		t.Errorf("samples differ from %s (-want +got):\n%s", golden, diff)
	}
}

// row prints what matters of an update: kind, direction, type, id, chat kind,
// phone, lid, reason, body, and a few details.
func row(u Update) string {
	var direction, typ, id, reason, body string
	var chat Identity
	var details []string
	switch u := u.(type) {
	case Message:
		direction, typ, id, chat, body = string(u.Direction), string(u.Type), u.ID, u.Chat, u.Body
		details = append(details, u.SentAt.Format(time.RFC3339), "raw="+u.RawType, "source="+string(u.Source))
		details = append(details, messageDetails(u)...)
	case Ack:
		direction, typ, id, chat = string(directionOf(u.FromMe)), string(u.Status), u.ID, u.Chat
		details = append(details, u.At.Format(time.RFC3339), "level="+strconv.Itoa(int(u.Level)))
	case Edit:
		direction, id, chat, body = string(directionOf(u.FromMe)), u.TargetID, u.Chat, u.Body
		details = append(details, u.At.Format(time.RFC3339), "edit="+u.ID, "empty="+strconv.FormatBool(u.Empty))
	case Revoke:
		direction, id, chat = string(directionOf(u.FromMe)), u.TargetID, u.Chat
		details = append(details, u.At.Format(time.RFC3339))
	case Reaction:
		direction, id, chat, body = string(directionOf(u.FromMe)), u.TargetID, u.Chat, u.Emoji
		details = append(details, u.At.Format(time.RFC3339Nano), "own="+u.ID,
			"by="+u.Reactor.ID, "removed="+strconv.FormatBool(u.Removed))
	case SessionStatus:
		typ, chat.Phone, chat.LID = string(u.State), u.Me.Phone, u.Me.LID
		details = append(details, u.At.Format(time.RFC3339), "session="+u.Session)
	case Ignored:
		reason = string(u.Reason)
	}
	if cut := []rune(body); len(cut) > 40 {
		body = string(cut[:40])
	}
	cells := []string{
		string(u.Kind()), direction, typ, id, string(chat.Kind), chat.Phone, chat.LID, reason,
		strconv.Quote(body), strings.Join(details, " "),
	}
	return strings.TrimSuffix(strings.Join(cells, " | "), " ")
}

func messageDetails(m Message) []string {
	var details []string
	add := func(name, value string) {
		if value != "" {
			details = append(details, name+"="+value)
		}
	}
	add("name", m.PushName)
	add("reply", m.ReplyTo)
	add("selected", m.SelectedID)
	if m.Ack != nil {
		add("ack", strconv.Itoa(int(*m.Ack)))
	}
	if m.Media != nil {
		add("mime", m.Media.MIME)
		add("file", m.Media.Filename)
		add("size", strconv.FormatInt(m.Media.Size, 10))
		add("missing", strconv.FormatBool(m.MediaMissing))
		add("voice", strconv.FormatBool(m.Media.Voice))
		if m.Media.S3 != nil {
			add("s3", m.Media.S3.Bucket+"/"+m.Media.S3.Key)
		}
	}
	if m.Location != nil {
		add("at", fmt.Sprintf("%v,%v", m.Location.Latitude, m.Location.Longitude))
		add("place", m.Location.Name)
	}
	if len(m.VCards) > 0 {
		add("cards", strconv.Itoa(len(m.VCards)))
	}
	return details
}

// sample reads a recorded body by its name.
func sample(t *testing.T, name string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata/samples", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// normalised takes a body through both stages, which must succeed.
func normalised(t *testing.T, body []byte) Update {
	t.Helper()
	env, err := ParseEnvelope(body)
	if err != nil {
		t.Fatalf("ParseEnvelope() error = %v", err)
	}
	u, err := Normalise(env)
	if err != nil {
		t.Fatalf("Normalise() error = %v", err)
	}
	return u
}
